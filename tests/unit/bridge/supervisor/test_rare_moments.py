"""What a supervisor finds of memory, disks, output and GPUs at moments that no test brings about from outside."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.supervisor import classify_exit, gpus, limits
from clusterfn.bridge.supervisor.attempt import Attempt, read_events
from clusterfn.bridge.supervisor.job import JobFolder
from clusterfn.bridge.supervisor.output import Pump, StreamOrder, put_in_order
from tests.unit.bridge.supervisor.test_attempt import lay


def test_processes_that_end_between_two_readings_leave_nothing_that_counts_twice(monkeypatch: pytest.MonkeyPatch):
    """Four share 100 MB, and one after another ends: the last one read has all of it."""
    shares = iter([25, 33, 50, 100, 0, 0, 0, 100])
    monkeypatch.setattr(limits, "resident_bytes", lambda pid: 100 << 20)
    monkeypatch.setattr(limits, "proportional", lambda pid: next(shares) << 20)
    sampler = limits.MemorySampler(200 << 20)

    assert not sampler.over([1, 2, 3, 4], 0.0)
    assert sampler.peak == 100 << 20


@pytest.mark.fault("33")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root: it mounts a small file system")
def test_no_inodes_left_is_a_full_disk(tmp_path: Path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=2", "none", str(tmp_path)], check=True)
    try:
        (tmp_path / "one").touch()
        assert classify_exit.disk_is_full(str(tmp_path))
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_no_end_of_output_is_no_reason_to_wait(tmp_path: Path):
    pump = Pump(os.open("/dev/zero", os.O_RDONLY), str(tmp_path / "stdout"), 1 << 20)

    pump.drain()

    assert (tmp_path / "stdout").stat().st_size == 1 << 20


def full(fd: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_after_a_full_disk_nothing_is_written_behind_the_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.pipe()
    pump = Pump(reader, str(tmp_path / "stdout"), 1 << 20)
    write = os.write
    write(writer, b"lost")
    monkeypatch.setattr(os, "write", full)
    pump.move()
    monkeypatch.undo()
    write(writer, b"behind")
    pump.move()

    assert pump.close() == "[clusterfn: 10 more bytes were not kept: No space left on device]"
    assert (tmp_path / "stdout").read_bytes().startswith(b"\n[clusterfn")


def test_the_name_of_another_users_process_moves_no_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'GPU-1, 1, /tmp/\\033]0;PWNED\\007\\033[2Jtr\\342\\200\\250ain\\rx\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")

    assert [each.name for each in gpus.gpu_processes()["GPU-1"]] == ["trainx"]


def test_a_job_is_looked_at_every_second_at_first_and_then_every_five(monkeypatch: pytest.MonkeyPatch):
    now, asked = [100.0], []
    monkeypatch.setattr(gpus, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(gpus, "hung_programs", [])
    monkeypatch.setattr(gpus.GpuUsageMonitor, "ask", lambda self: asked.append(now[0] - 100.0))
    monitor = gpus.GpuUsageMonitor(["GPU-1"], [])

    for _ in range(40):
        now[0] += 0.5
        monitor.look()

    assert asked == [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0]


@pytest.mark.parametrize(
    ("does", "over_at"), [({}, 10), ({4: "prints"}, 14), ({4: "computes"}, 14), ({4: "prints", 12: "computes"}, 22)]
)
def test_a_job_is_idle_from_when_it_printed_or_computed_last(monkeypatch, does, over_at):
    now, used_s, printed = 1000.0, 5.0, 0
    monkeypatch.setattr(limits.clock, "now", lambda: now)
    monkeypatch.setattr(limits, "cpu_s", lambda pid: used_s)
    stall = limits.Stall(10.0)
    stall.over([1], 0.0, printed)

    for second in range(1, over_at + 1):
        now += 1
        printed += does.get(second) == "prints"
        used_s += does.get(second) == "computes"
        assert stall.over([1], 0.0, printed) == (second == over_at)


def test_the_order_of_two_streams_is_noted_also_where_the_folder_comes_later(tmp_path):
    path = tmp_path / "attempt" / "order"
    order = StreamOrder(str(path))
    printed = [(0, b"one "), (1, b"ONE "), (1, b"TWO "), (0, b"two "), (1, b"THREE")]
    for which, data in printed[:3]:
        order.grow(which, len(data))
    path.parent.mkdir()
    for which, data in printed[3:]:
        order.grow(which, len(data))
    streams = [b"".join(data for which, data in printed if which == stream) for stream in (0, 1)]

    found = list(put_in_order(path.read_bytes(), (streams[0], streams[1])))

    assert found == [(0, b"one "), (1, b"ONE TWO "), (0, b"two "), (1, b"THREE")]
    for damaged in (b"", b"x y\n", b"1\n", b"9" * 5000 + b" 1\n", b"-1 2\n"):
        assert list(put_in_order(damaged, (streams[0], streams[1]))) == [(0, streams[0]), (1, streams[1])]


def test_one_stream_alone_leaves_no_order(tmp_path):
    order = StreamOrder(str(tmp_path / "order"))
    for _ in range(3):
        order.grow(1, 10)
    order.write()

    assert not list(tmp_path.iterdir())


Forget = Callable[..., None]


@pytest.fixture
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forget:
    """Let each of these files have another handle from now on, and the one that is open be stale."""

    def forgets(*paths: str) -> None:
        stale = {os.stat(path).st_ino for path in paths}

        def refusing(real: Any) -> Any:
            def wrote(fd: int, *more: Any) -> int:
                if os.fstat(fd).st_ino in stale:
                    raise OSError(errno.ESTALE, "Stale file handle")
                return int(real(fd, *more))

            return wrote

        for path in paths:
            (tmp_path / "copy").write_bytes(Path(path).read_bytes())
            (tmp_path / "copy").replace(path)
        for name in ("pwrite", "write"):
            monkeypatch.setattr(os, name, refusing(getattr(os, name)))

    return forgets


def test_heartbeat_and_events_of_an_attempt(tmp_path: Path, forget: Forget) -> None:
    attempt = Attempt(JobFolder(str(lay(tmp_path))), 1)
    attempt.prepare()
    forget(attempt.path("heartbeat"), attempt.path("events.jsonl"))

    attempt.beat()
    attempt.beat()
    attempt.event("running")

    assert Path(attempt.path("heartbeat")).read_bytes() == b"00000002"
    assert [each["event"] for each in read_events(attempt)] == ["running"]


def test_output(tmp_path: Path, forget: Forget) -> None:
    reads, writes = os.pipe()
    pump = Pump(reads, str(tmp_path / "stdout"), 1000)
    os.write(writes, b"before ")
    pump.move()
    forget(str(tmp_path / "stdout"))

    os.write(writes, b"after")
    os.close(writes)
    pump.drain()

    assert pump.close() is None and (tmp_path / "stdout").read_bytes() == b"before after"
    pump.forget()
