"""A full disk is named as such, before the start and after it, and the outcome is published all the same."""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterfn.bridge.supervisor import judge
from tests.bridge.host import Bench, is_running, until


@pytest.fixture
def small(bridge: Path, bench: Bench, tmp_path: Path, as_root: None) -> Iterator[Bench]:
    """Jobs below a root of one megabyte."""
    root = tmp_path / "small"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(root)], check=True)
    yield Bench(root, bridge, bench.host, bench.python)
    subprocess.run(["umount", "-l", str(root)], check=True)


def fill(path: Path) -> None:
    """Take all that is left."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_a_value_that_does_not_fit(small: Bench):
    job, outcome = small.run("def f():\n    return 'x' * (2 << 20)\n")

    assert (outcome["kind"], outcome["stage"]) == ("disk", "result"), outcome
    assert "No space left" in outcome["message"]
    assert "make room" in outcome["hint"]
    assert (job.attempt / "value.pkl").stat().st_size == 0


def test_output_that_does_not_fit_does_not_cost_the_value(small: Bench):
    source = "def f():\n    import os\n    for _ in range(400):\n        os.write(1, b'x' * 4096)\n    return None\n"
    _, outcome = small.run(source, log_limit_bytes=64 << 20)

    assert outcome["kind"] in ("returned", "disk")
    assert any("No space left" in note for note in outcome["notes"])


def test_a_function_that_ends_on_a_full_disk(small: Bench):
    source = "def f():\n    import os\n    for _ in range(400):\n        os.write(1, b'x' * 4096)\n    os._exit(1)\n"
    _, outcome = small.run(source, log_limit_bytes=64 << 20)

    assert outcome["kind"] == "disk"
    assert outcome["message"].endswith("and the disk is full")


def test_a_disk_that_is_full_before_the_start(small: Bench):
    job = small.job("def f():\n    print('ran')\n")
    fill(small.root / "ballast")

    assert job.start().wait(60) == 28

    assert not (job.attempt / "stdout").exists()
    (small.root / "ballast").unlink()
    job.call("after", "28")
    assert job.outcome()["kind"] == "host_disk"


def test_a_disk_with_room_for_the_outcome_alone(small: Bench):
    job = small.job("def f():\n    print('ran')\n")
    fill(small.root / "ballast")
    with (small.root / "ballast").open("r+b") as file:
        file.truncate(file.seek(0, 2) - (32 << 10))

    outcome = job.run()

    assert (outcome["kind"], outcome["stage"]) == ("host_disk", "start")
    assert "No space left" in outcome["message"]


def test_a_disk_that_the_function_fills(small: Bench):
    source = """def f(path):
    file = open(path, 'wb', buffering=0)
    while True:
        file.write(b'x' * 4096)
"""
    _, outcome = small.run(source, str(small.root / "ballast"))

    assert outcome["kind"] == "raised"
    assert outcome["exception"]["type"].endswith("OSError")


def test_no_inodes_left_is_a_full_disk(tmp_path: Path, as_root: None):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=2", "none", str(tmp_path)], check=True)
    try:
        (tmp_path / "one").touch()
        assert judge.disk_is_full(str(tmp_path))
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


FILLS = """def f(ballast, said):
    import glob, os
    for path in glob.glob('../.reserve-*'):
        os.unlink(path)
    with open(ballast, 'wb', buffering=0) as file:
        try:
            while True:
                file.write(b'x' * 4096)
        except OSError:
            open(said, 'w').close()
"""


def test_a_disk_that_has_room_again_soon_costs_no_outcome(small: Bench, tmp_path: Path):
    job = small.job(FILLS, str(small.root / "ballast"), str(tmp_path / "full"))
    script = job.start()
    until((tmp_path / "full").exists)
    worker = job.worker_pid()
    until(lambda: not is_running(worker), 10)
    time.sleep(1.0)

    assert script.poll() is None
    (small.root / "ballast").unlink()

    assert script.wait(20) == 10
    assert (job.outcome()["kind"], job.outcome()["by"]) == ("disk", "supervisor")
