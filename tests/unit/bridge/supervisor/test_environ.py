"""Where relative folders and the caches of a job lead, and which cores it gets.

This machine need not have these disks and CPUs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

from clusterfn.bridge.supervisor import environ
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
