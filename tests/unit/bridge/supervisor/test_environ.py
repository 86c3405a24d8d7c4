"""Where relative folders and the caches of a job lead, which cores it gets, and how its worker starts.

This machine need not have these disks and CPUs.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

from clusterfn.bridge.supervisor import environ, worker_process
from clusterfn.bridge.supervisor.worker_process import Cores


@pytest.mark.parametrize(
    ("env", "depends"),
    [
        ({}, False), ({"PATH": "bin", "MINE": "."}, False), ({"PYTHONPATH": "/a:/b"}, False),
        ({"PYTHONPATH": "src"}, True), ({"PYTHONPATH": "/a:"}, True), ({"LD_LIBRARY_PATH": "/a:lib"}, True),
    ],
)  # fmt: skip
def test_a_relative_folder_depends_on_where_the_interpreter_starts(env: dict[str, str], depends: bool):
    assert environ.depends_on_cwd(env) is depends


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than the tests'."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no /dev/shm")
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("free", "moved", "reason"),
    [
        (0, {"TORCH_HOME", "PIP_CACHE_DIR", "TRITON_CACHE_DIR"}, "is on another disk and has no such cache"),
        (1 << 60, {"HF_HOME", "TORCH_HOME", "PIP_CACHE_DIR", "TRITON_CACHE_DIR"}, "has only"),
    ],
)
def test_a_small_home_directory_on_another_disk_keeps_the_login(
    tmp_path: Path, other_disk: Path, monkeypatch: pytest.MonkeyPatch, free: int, moved: set[str], reason: str
):
    token = other_disk / ".cache/huggingface/token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_x")
    monkeypatch.setenv("HOME", str(other_disk))
    monkeypatch.setattr(environ, "ROOM_BYTES", free)
    values: dict[str, str] = {}

    (note,) = environ.redirect_caches({"scheduler": "bare", "root": str(tmp_path)}, values)

    token_path = values.pop("HF_TOKEN_PATH", None)
    assert set(values) == moved
    assert token_path == (str(token) if "HF_HOME" in moved else None)
    assert reason in note


def test_the_local_machine_keeps_its_caches_whatever_its_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", "/nowhere")
    values: dict[str, str] = {}

    assert environ.redirect_caches({"scheduler": "local", "root": str(tmp_path)}, values) == []
    assert values == {}


def test_jobs_at_the_same_time_use_different_cores(monkeypatch: pytest.MonkeyPatch):
    """On CPUs that this machine does not have, so that no other job is in the way."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(9000, 9004)))

    first, second, third = Cores(2), Cores(1), Cores(2)

    assert first.chosen == {9000, 9001}
    assert second.chosen == {9002}
    assert third.chosen is not None
    assert 9003 in third.chosen
    assert len(third.chosen) == 2
    assert Cores(4).chosen is None
    for cores in (first, second, third):
        cores.release()


READ_AT_START = (
    "PYTHONHASHSEED", "PYTHONPATH", "PYTHONWARNINGS", "PYTHONOPTIMIZE", "LD_PRELOAD", "LD_LIBRARY_PATH", "LANG",
    "LC_ALL", "TZ", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "OPENSSL_CONF", "OMP_PROC_BIND", "HOME", "MINE", "PATH",
)  # fmt: skip
OWN = ("CUDA_VISIBLE_DEVICES", "HF_HOME", "CLUSTERFN_JOB", "CLUSTERFN_INDEX", "CLUSTERFN_CHECKPOINT", "OMP_NUM_THREADS")


def test_what_the_interpreter_reads_at_its_start_cannot_change_any_more():
    env = {"PATH": "/bin", **dict.fromkeys(OWN, "1")}

    assert environ.may_still_get(env, {**env, **dict.fromkeys(OWN, "2")})
    assert environ.may_still_get(env, {"PATH": "/bin"})
    assert [name for name in READ_AT_START if environ.may_still_get(env, {**env, name: "2"})] == []


def test_a_machine_without_room_for_one_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch):
    def no_room() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", no_room)

    with pytest.raises(BlockingIOError):
        worker_process.launch(["/bin/cat"], {}, "/", {})
    assert set(os.listdir("/proc/self/fd")) <= before


def test_one_that_hangs_in_its_interpreter_is_ended_when_another_is_needed(tmp_path: Path):
    worker = worker_process.launch(["/bin/sleep", "600"], {}, str(tmp_path), {})

    worker.dismiss()

    assert os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]) == -signal.SIGKILL
