"""A full disk is named as such, before the start and after it, and the outcome is published all the same."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.host import Bench
from tests.bridge.layout import IMPATIENT, PATIENT, layout_bridge
from tests.processes import is_running
from tests.waiting import stays, until


@pytest.fixture
def small(bridge: Path, bench: Bench, tmp_path: Path, as_root: None) -> Iterator[Bench]:
    """Jobs below a root of one megabyte."""
    root = tmp_path / "small"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(root)], check=True)
    yield Bench(root, bridge, bench.host, bench.python)
    subprocess.run(["umount", "-l", str(root)], check=True)


@pytest.fixture
def impatient(small: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bridge that waits a second for room."""
    monkeypatch.setattr(small, "bridge", layout_bridge(tmp_path / "impatient", ("layout.py", PATIENT, IMPATIENT)))


def fill(path: Path) -> None:
    """Take all that is left."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_output_that_does_not_fit_does_not_cost_the_value(small: Bench, impatient: None):
    source = "def f():\n    import os\n    for _ in range(400):\n        os.write(1, b'x' * 4096)\n    return None\n"
    _, outcome = small.run(source, log_limit_bytes=64 << 20)

    assert outcome["kind"] in ("returned", "disk")
    assert any("No space left" in note for note in outcome["notes"])


def test_a_disk_that_is_full_before_the_start(small: Bench):
    job = small.job("def f():\n    print('ran')\n")
    fill(small.root / "ballast")

    assert job.start().wait(150) == 28

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


FILLS = """def f(ballast, said):
    import os
    with open(ballast, 'wb', buffering=0) as file:
        try:
            while True:
                file.write(b'x' * 4096)
        except OSError:
            print(os.getpid(), file=open(said, 'w'))
"""
RETURNS = f"{FILLS}    return 'a value' * 1000\n"
# Its start would be lost, as it is told after it; and nothing is left that was reserved for its end.
DIES = FILLS.replace(
    "    with",
    """    import glob, time
    while not os.path.getsize('../events.jsonl'):
        time.sleep(0.01)
    for path in glob.glob('../.reserve-*'):
        os.unlink(path)
    with""",
)
DIES += "            os._exit(3)\n"


def test_a_disk_that_has_room_again_soon_costs_no_outcome(small: Bench, tmp_path: Path):
    job = small.job(DIES, str(small.root / "ballast"), str(tmp_path / "full"))
    script = job.start()
    until((tmp_path / "full").exists)
    worker = job.worker_pid()
    until(lambda: not is_running(worker))
    stays(lambda: script.poll() is None, 1.0)
    (small.root / "ballast").unlink()

    assert script.wait(150) == 10
    assert (job.outcome()["kind"], job.outcome()["by"]) == ("disk", "supervisor")


@pytest.mark.parametrize("fails", ["value", pytest.param("exception", marks=pytest.mark.long)])
def test_a_value_waits_for_room_on_the_disk_and_that_is_said(small: Bench, tmp_path: Path, fails: str):
    source = RETURNS if fails == "value" else RETURNS.replace("return ", "raise ValueError(") + ")"
    job = small.job(source, str(small.root / "ballast"), str(tmp_path / "full"))
    script = job.start()
    (worker,) = until(lambda: (tmp_path / "full").exists() and (tmp_path / "full").read_text().split())
    until(lambda: ") S " in Path(f"/proc/{worker}/stat").read_text())  # nothing else that it does takes it from the CPU
    stays(lambda: script.poll() is None, 1.0)
    (small.root / "ballast").unlink()

    script.wait(150)
    outcome = job.outcome()
    assert outcome["kind"] == ("returned" if fails == "value" else "raised")
    assert outcome["notes"][-1] == "the disk was full: the value waited for room"
    assert len(job.attempt.joinpath("value.pkl").read_bytes()) == outcome["value"]["size"] > 7000
