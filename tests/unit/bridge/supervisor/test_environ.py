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
from clusterfn.bridge.supervisor.eligible_gpus import (
    GpuInfo,
    describe_gpus,
    describe_request,
    eligible_gpus,
    is_gpu_type,
    suggest_gpus,
)
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
def test_a_small_home_directory_on_another_disk_keeps_the_login(tmp_path, other_disk, monkeypatch, free, moved, reason):
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


def test_the_local_machine_keeps_its_caches_whatever_its_home_directory(tmp_path, monkeypatch):
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


A6000, A1000, A100, H100, T4 = (
    GpuInfo(index, f"GPU-{index}", name, mib)
    for index, (name, mib) in enumerate([
        ("NVIDIA RTX A6000", 49140),
        ("NVIDIA RTX A1000", 8188),
        ("NVIDIA A100-SXM4-80GB", 81920),
        ("NVIDIA H100 80GB HBM3", 81559),
        ("Tesla T4", 15360),
    ])
)  # fmt: skip
ALL = [A6000, A1000, A100, H100, T4]


@pytest.mark.parametrize(
    ("name", "kind", "same"),
    [
        ("NVIDIA RTX A6000", "a6000", True),
        ("NVIDIA RTX A6000", "RTX A6000", True),
        ("NVIDIA RTX A6000", "rtx_a6000", True),
        ("NVIDIA RTX A6000", "6000", False),
        ("NVIDIA RTX A1000", "a100", False),
        ("NVIDIA A100-SXM4-80GB", "a100", True),
        ("NVIDIA GeForce RTX 4090", "rtx4090", True),
        ("NVIDIA GeForce RTX 4090", "409", False),
        ("NVIDIA GeForce RTX 3080 Ti", "3080", True),
        ("NVIDIA RTX A6000", "--", False),
    ],
)
def test_a_type_is_whole_words_of_the_gpus_name(name, kind, same):
    assert is_gpu_type(name, kind) is same


@pytest.mark.parametrize(
    ("kind", "memory_gb", "expected"),
    [
        (None, None, ALL),
        ("a100", None, [A100]),
        (None, 48, [A6000, A100, H100]),
        (None, 80, [A100, H100]),
        (None, 16, [A6000, A100, H100, T4]),
        ("a6000", 80, []),
        ("t4", 10, [T4]),
    ],
)
def test_a_gpu_counts_with_the_size_under_which_it_is_sold(kind, memory_gb, expected):
    assert eligible_gpus(ALL, kind, memory_gb and memory_gb << 30) == expected


def test_what_is_asked_for_and_what_there_is_is_said_in_words():
    assert describe_request(2, "a100", 40 << 30) == "2 GPUs of type a100 with 40 GB"
    assert describe_request(1, None, None) == "1 GPU"
    assert describe_gpus([A6000, T4, A6000]) == "2 x NVIDIA RTX A6000 (48 GB), 1 x Tesla T4 (15 GB)"
    assert describe_gpus([]) == "none"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("a6001", 'did you mean gpu_type="a6000"?'),
        ("A600", 'did you mean gpu_type="a6000"?'),
        ("mi300x", "ask for fewer or other GPUs, or choose another host"),
        ("a6000", "ask for fewer or other GPUs, or choose another host"),
        (None, "ask for fewer or other GPUs, or choose another host"),
    ],
)
def test_a_refusal_names_the_type_that_was_perhaps_meant(kind, expected):
    assert suggest_gpus([A6000, T4], kind) == expected
