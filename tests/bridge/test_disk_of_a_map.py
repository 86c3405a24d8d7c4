"""A map onto a full disk: what has ended stays, each error names the disk, and the rest can be retried."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import DiskFull, HostDiskFull
from clusterfn.bridge import layout
from tests.bridge.layout import be_impatient
from tests.bridge.test_disk import fill
from tests.waiting import stays, until


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
    # The client of a map waits for room, too.
    monkeypatch.setattr(layout, "ROOM_PAUSES_S", (0.5, 0.5, 1.0, 1.0))
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
    until(lambda: [info.state for info in clusterfn.jobs()].count("PENDING") == 1, "what is there can still be listed")


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


def wait_for(path: str, index: int, size: int) -> tuple[int, bytes]:
    import os
    import time

    while index and not os.path.exists(f"{path}-{index}"):
        time.sleep(0.05)
    return index, os.urandom(size)


wait_for.__module__ = "__main__"  # it travels by value, and this module does not


def numbers(group: clusterfn.JobGroup[Any]) -> list[Any]:
    """What its items returned, without the bytes; the errors of the others."""
    return [each[0] if isinstance(each, tuple) else each for each in group.results()]


def map_onto(disk: Path, path: Path, size: int = 0) -> clusterfn.JobGroup[Any]:
    """A map of six items, of which the others run once the first has ended and the disk is full."""
    group = clusterfn.cluster(wait_for).map([str(path)] * 6, range(6), [size] * 6, max_parallel=2)
    until(lambda: group.states.count("RETURNED") == 1)
    fill(disk / "ballast")
    for index in range(1, 6):
        Path(f"{path}-{index}").touch()
    return group


@pytest.mark.parametrize("full_s", [0.5, 6.0])
def test_a_map_on_a_disk_that_has_room_again_soon_loses_nothing(
    own_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_s: float
):
    """A supervisor waits for room for a second here, and the client starts others for three, or for minutes."""
    if full_s < 1:
        monkeypatch.setattr(layout, "ROOM_PAUSES_S", (0.5,) * 200)
    group = map_onto(own_disk, tmp_path / "go")
    stays((own_disk / "ballast").exists, full_s)
    (own_disk / "ballast").unlink()

    if full_s > 1:
        group = group.retry_failed() if any(isinstance(each, Exception) for each in group.results()) else group
    assert numbers(group) == list(range(6))


def test_a_map_on_a_disk_that_stays_full_keeps_what_has_ended_and_the_rest_can_be_retried(
    own_disk: Path, tmp_path: Path
):
    group = map_onto(own_disk, tmp_path / "go", 600_000)  # more than what a few processes give back when they end

    with kept_full(own_disk):
        results = numbers(group)

    lost = [index for index, each in enumerate(results) if each != index]
    assert results[0] == 0 and {type(results[index]) for index in lost} <= {HostDiskFull, DiskFull}
    assert lost and numbers(group.retry_failed()) == list(range(6))
