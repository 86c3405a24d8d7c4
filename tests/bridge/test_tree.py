"""Finding processes in a /proc laid out for the test: the cheap way needs a kernel that not every machine has."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterfn.bridge.supervisor import limits, process_tree
from tests.waiting import replace_here, until


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process_tree, "PROC", str(tmp_path))
    monkeypatch.setattr(limits, "PROC", str(tmp_path))
    return tmp_path


def process(
    proc: Path, pid: int, parent: int, children: str | None = None, state: str = "S", name: str = "x", threads: int = 1
) -> Path:  # fmt: skip
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} 0 0{' 0' * 13} {threads}")
    if children is not None:
        (task / "children").write_text(children)
    return proc / str(pid)


def test_descendants_by_the_kernels_lists_of_children(proc: Path):
    process(proc, 1, 0, "2 3 ")
    process(proc, 2, 1, "")
    process(proc, 3, 1, "4 ")
    process(proc, 4, 3, "")
    process(proc, 9, 0, "")

    assert sorted(process_tree.descendants(1)) == [2, 3, 4]


def test_descendants_by_parents_where_there_are_no_lists(proc: Path):
    process(proc, 1, 0)
    process(proc, 2, 1, name="odd) S 9 (name")
    process(proc, 3, 2)
    process(proc, 9, 0)

    assert sorted(process_tree.descendants(1)) == [2, 3]


def test_without_proc_nothing_is_found(proc: Path):
    proc.rmdir()

    assert (process_tree.descendants(1), process_tree.tagged("job", 1), process_tree.peak_of(1)) == ([], [], 0)


def test_zombies_are_dead(proc: Path):
    process(proc, 1, 0)
    process(proc, 2, 1, state="Z")
    process(proc, 3, 1, state="Z", threads=2)  # its first thread has ended

    assert process_tree.descendants(1) == [3]


def test_a_process_whose_first_thread_has_ended_lives_until_its_last_has():
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
    started = subprocess.Popen([sys.executable, "-c", f"{code}; ctypes.CDLL(None).pthread_exit(None)"])
    until(lambda: process_tree.state_of(started.pid) == "Z")
    assert started.poll() is None, "the kernel collects it before its other thread has ended"

    process_tree.end(lambda: [pid for pid in [started.pid] if process_tree.is_alive(pid)], lambda: None)

    assert started.poll() == -signal.SIGKILL


def test_what_cannot_be_ended_is_named_within_the_limit():
    assert process_tree.end(lambda: [1 << 22], lambda: None, limit_s=0.1) == ["? (pid 4194304)"]


def test_the_machines_out_of_memory_killer_is_believed_for_a_moment_only(proc: Path, monkeypatch: pytest.MonkeyPatch):
    (proc / "vmstat").write_text("oom_kill 7\n")
    killer = limits.OomDetector()
    (proc / "vmstat").write_text("oom_kill 8\n")

    assert "was at work in that second" in (killer.seen() or "")
    began = time.monotonic()
    for seconds in (2.0, 4.0):
        replace_here(monkeypatch, time, "monotonic", lambda now=began + seconds: now)
        killer.look()
    assert killer.seen() is None


def test_pages_of_old_kernels_are_counted_as_they_can_be(proc: Path):
    folder = process(proc, 5, 1)
    (folder / "statm").write_text("100 10 0 0 0 0 0")
    assert limits.proportional(5) == 10 * limits.PAGE_BYTES
    (folder / "smaps_rollup").write_text("5-6 ---p 0 00:00 0 [rollup]\nRss: 50 kB\nPss: 40 kB\n")
    assert limits.proportional(5) == 40 << 10
    (folder / "smaps_rollup").write_text("x\nPss: 40 kB\nPss_Anon: 20 kB\nPss_Shmem: 3 kB\n")
    assert limits.proportional(5) == 23 << 10
