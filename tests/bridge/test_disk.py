"""A full disk is named as such, before the start and after it, and the outcome is published all the same."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterfn
from clusterfn import DiskFull, HostDiskFull
from tests.bridge.host import Bench
from tests.bridge.layout import IMPATIENT, PATIENT, be_impatient, layout_bridge
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


@contextlib.contextmanager
def kept_full(disk: Path) -> Iterator[None]:
    """Take all that becomes free of a disk, and give all of it back in the end."""
    over = threading.Event()

    def take() -> None:
        while not over.wait(0.005):
            fill(disk / f"ballast-{time.monotonic_ns()}")

    taking = threading.Thread(target=take)
    taking.start()
    try:
        yield
    finally:
        over.set()
        taking.join()
        for path in disk.glob("ballast*"):
            path.unlink()


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
    with open(ballast, 'wb', buffering=0) as file:
        try:
            while True:
                file.write(b'x' * 4096)
        except OSError:
            open(said, 'w').close()
"""
RETURNS = f"{FILLS}    return 'a value' * 1000\n"
# Its start would be lost, as it is told after it; and nothing is left that was reserved for its end.
DIES = FILLS.replace(
    "    with",
    """    import glob, os, time
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


@pytest.mark.parametrize("fails", ["value", "exception"])
def test_a_value_waits_for_room_on_the_disk_and_that_is_said(small: Bench, tmp_path: Path, fails: str):
    source = RETURNS if fails == "value" else RETURNS.replace("return ", "raise ValueError(") + ")"
    job = small.job(source, str(small.root / "ballast"), str(tmp_path / "full"))
    script = job.start()
    until((tmp_path / "full").exists)
    stays(lambda: script.poll() is None, 2.0)
    (small.root / "ballast").unlink()

    script.wait(150)
    outcome = job.outcome()
    assert outcome["kind"] == ("returned" if fails == "value" else "raised")
    assert outcome["notes"][-1] == "the disk was full: the value waited for room"
    assert len(job.attempt.joinpath("value.pkl").read_bytes()) == outcome["value"]["size"] > 7000


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """While this file is there, jobs of `own_disk` wait in their setup; each leaves a file `waits-PID` beside it."""
    return tmp_path / "gate"


@pytest.fixture
def own_disk(tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch, as_root: None) -> Iterator[Path]:
    """The root of a bare host, on a disk of its own that has all that every call needs."""
    root, config = tmp_path / "root", tmp_path / "clusterfn.yml"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "none", str(root)], check=True)
    waits = f'if [ -e "{gate}" ]; then : > "{tmp_path}"/waits-$$; while [ -e "{gate}" ]; do sleep 0.05; done; fi'
    lines = ["scheduler: bare", "transport: local", "limits: {cores: 64}", f"root: {root}", f"setup: ['{waits}']"]
    config.write_text(f"hosts:\n  {tmp_path.name}:\n" + "".join(f"    {line}\n" for line in lines))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    clusterfn.cluster(abs)(-1)
    be_impatient(root)
    yield root
    subprocess.run(["umount", "-l", str(root)], check=True)


def test_a_map_onto_a_full_disk_ends_names_the_disk_and_leaves_no_temporaries(own_disk: Path, gate: Path):
    gate.touch()
    group = clusterfn.cluster(abs).map(range(6), max_parallel=2)
    until(lambda: len(list(gate.parent.glob("waits-*"))) == 2)
    fill(own_disk / "ballast")
    gate.unlink()

    with pytest.raises(HostDiskFull, match="No space is left on .* for /.*/root/") as caught:
        group.results()

    assert caught.value.evidence[-1].endswith(" free") and "free some (old jobs are in" in (caught.value.hint or "")
    until(lambda: not list(Path(group.folder).rglob(".*")))  # of the other element too, which may still end
    assert [info.state for info in clusterfn.jobs()].count("PENDING") == 1, "what is there can still be listed"


def test_a_disk_without_inodes_is_named_as_that(own_disk: Path):
    disk = os.statvfs(own_disk)
    wanted = f"remount,nr_inodes={disk.f_files - disk.f_ffree + 2}"
    subprocess.run(["mount", "-o", wanted, str(own_disk)], check=True)
    with contextlib.suppress(OSError):
        for number in range(10**6):
            (own_disk / f"none-{number}").touch()

    with pytest.raises(HostDiskFull, match="No more files can be made on .*: the inodes are used up") as caught:
        clusterfn.cluster(abs)(-2)

    assert "MB free" in caught.value.evidence[-1] and (caught.value.hint or "").startswith("remove files (old jobs")


def wait_for(path: str, index: int) -> int:
    import os
    import time

    while index and not os.path.exists(f"{path}-{index}"):
        time.sleep(0.05)
    return index


wait_for.__module__ = "__main__"  # it travels by value, and this module does not


def map_onto(disk: Path, path: Path) -> clusterfn.JobGroup[int]:
    """A map of six items, of which the others run once the first has ended and the disk is full."""
    group = clusterfn.cluster(wait_for).map([str(path)] * 6, range(6), max_parallel=2)
    until(lambda: group.states.count("RETURNED") == 1)
    fill(disk / "ballast")
    for index in range(1, 6):
        Path(f"{path}-{index}").touch()
    return group


@pytest.mark.parametrize("full_s", [0.5, 6.0])
def test_a_map_on_a_disk_that_has_room_again_soon_loses_nothing(own_disk: Path, tmp_path: Path, full_s: float):
    """A supervisor waits for room for a second here, and the client starts others for three."""
    group = map_onto(own_disk, tmp_path / "go")
    stays((own_disk / "ballast").exists, full_s)
    (own_disk / "ballast").unlink()

    if full_s > 1:
        group = group.retry_failed() if any(isinstance(each, Exception) for each in group.results()) else group
    assert group.results() == list(range(6))


def test_a_map_on_a_disk_that_stays_full_keeps_what_has_ended_and_the_rest_can_be_retried(
    own_disk: Path, tmp_path: Path
):
    group = map_onto(own_disk, tmp_path / "go")

    with kept_full(own_disk):
        results = group.results()

    lost = [index for index, each in enumerate(results) if each != index]
    assert results[0] == 0 and {type(results[index]) for index in lost} <= {HostDiskFull, DiskFull}
    assert len(lost) == 5
    assert group.retry_failed().results() == list(range(6))
