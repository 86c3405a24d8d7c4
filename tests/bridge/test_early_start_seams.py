"""Whether a worker is started ahead of its attempt, asked in the process of the test."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.supervisor import early_start, worker_process
from tests.bridge.host import Bench
from tests.bridge.test_early_start import ENV, built


def end(worker: worker_process.WorkerProcess) -> None:
    worker.dismiss()
    os.waitpid(worker.pid, 0)


def test_no_folder_of_the_user_is_looked_at_before_the_job_is_claimed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On a file system that hangs, the supervisor could neither be cancelled nor keep a time limit."""
    seen: list[str] = []
    for name in ("stat", "lstat", "statvfs", "access", "listdir", "open"):

        def look(path: object, *args: object, _real: Any = getattr(os, name), **options: object) -> object:
            seen.append(str(path))
            return _real(path, *args, **options)

        monkeypatch.setattr(os, name, look)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    worker = early_start.start_worker(str(bench.job(ENV, cwd=str(tmp_path / "project")).folder))

    assert worker is not None
    end(worker)
    assert seen and not [path for path in seen if path.startswith((f"{tmp_path}/home", f"{tmp_path}/project"))]


def test_a_machine_without_room_for_one_loses_no_job(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", no_room)

    assert early_start.start_worker(str(bench.job("def f():\n    return 1\n").folder)) is None
    assert set(os.listdir("/proc/self/fd")) <= before, "what it has opened is closed"


def no_room() -> int:
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.mark.parametrize("ready", [None, "{"])
def test_an_environment_that_is_not_there_or_not_plain_starts_none(bench: Bench, ready: str | None):
    assert early_start.start_worker(str(bench.job(ENV, **built(bench, ready)).folder)) is None


@pytest.mark.parametrize(("more", "starts"), [({}, True), ({"purged": True}, False)])
def test_an_environment_that_must_be_looked_at_first_starts_none(bench: Bench, more: dict[str, object], starts: bool):
    worker = early_start.start_worker(str(bench.job(ENV, **built(bench, "{}", **more)).folder))

    assert (worker is not None) is starts
    if worker is not None:
        end(worker)


def test_an_environment_of_somebody_else_starts_none(bench: Bench, as_root: None):
    spec = built(bench, "{}")
    os.chown(bench.root / "envs" / ("7f3a" * 4) / "READY", 4242, 4242)

    assert early_start.start_worker(str(bench.job(ENV, **spec).folder)) is None


@pytest.mark.parametrize("name", ["claim", "attempts", "../../machines/m/queue/7f3a"])
def test_a_job_that_has_begun_or_will_wait_starts_none(bench: Bench, name: str):
    job = bench.job("def f():\n    return 1\n")
    (job.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (job.folder / name).touch()

    assert early_start.start_worker(str(job.folder)) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"after": {"7f3a": {}}},
        {"env": {"PYTHONPATH": "src"}},
        {"env": {"LD_LIBRARY_PATH": "/lib:"}},
        {"resources": {"nodes": 2}},
        {"resources": {"tasks_per_node": 2}},
    ],
)
def test_a_job_whose_worker_is_not_known_yet_starts_none(bench: Bench, spec: dict[str, object]):
    assert early_start.start_worker(str(bench.job("def f():\n    return 1\n", **spec).folder)) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"id": "7f3a"'])
def test_a_damaged_spec_is_left_to_the_supervisor(tmp_path: Path, text: str):
    (tmp_path / "spec.json").write_text(text)

    assert early_start.start_worker(str(tmp_path)) is None


READ_AT_START = (
    "PYTHONHASHSEED", "PYTHONPATH", "PYTHONWARNINGS", "PYTHONOPTIMIZE", "LD_PRELOAD", "LD_LIBRARY_PATH", "LANG",
    "LC_ALL", "TZ", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "OPENSSL_CONF", "OMP_PROC_BIND", "HOME", "MINE", "PATH",
)  # fmt: skip
OWN = ("CUDA_VISIBLE_DEVICES", "HF_HOME", "CLUSTERFN_JOB", "CLUSTERFN_INDEX", "CLUSTERFN_CHECKPOINT", "OMP_NUM_THREADS")


def test_what_the_interpreter_reads_at_its_start_cannot_change_any_more():
    argv, env = ["/bin/cat"], {"PATH": "/bin", **dict.fromkeys(OWN, "1")}
    worker = worker_process.launch(argv, env, "/", {})
    try:
        assert worker.fits(argv, {**env, **dict.fromkeys(OWN, "2")}) and worker.fits(argv, {"PATH": "/bin"})
        assert [name for name in READ_AT_START if worker.fits(argv, {**env, name: "2"})] == []
        assert not worker.fits(["/bin/true"], env) and not worker.fits(argv, dict.fromkeys(OWN, "1"))
    finally:
        worker.dismiss()
    os.waitpid(worker.pid, 0)


def test_one_that_hangs_in_its_interpreter_is_ended_when_another_is_needed(tmp_path: Path):
    worker = worker_process.launch(["/bin/sleep", "600"], {}, str(tmp_path), {})

    worker.dismiss()

    assert os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]) == -signal.SIGKILL
