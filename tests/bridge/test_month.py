"""A month in the life of a root: nothing that was not over is removed, no result goes before its time, and the root
does not grow without end, whatever happens to clocks, the machine, the user's login and a site's purges."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.agent.files import record_use
from clusterfn.bridge.agent.uploads import remove_old_parts
from clusterfn.bridge.builder.locks import FolderLock, LockHolder, beats_folder, identify_process
from clusterfn.bridge.supervisor.job import JobFolder
from clusterfn.bridge.supervisor.main import remove_expired
from tests.bridge.host import Bench, Job
from tests.bridge.month import DAY_S, Month
from tests.waiting import until

KEEP_DAYS, LONG_DAYS = 5.0, 12.0
A_DAY = 3  # jobs that end on each
HOUR_S = 3600.0
ONE_CORE: dict[str, Any] = {"limits": {"cores": 1}, "keep_days": KEEP_DAYS}
# Waits until the file is there; says in which attempt.
WAITS = """
def f(path):
    import os, time
    while not os.path.exists(path):
        time.sleep(0.2)
    return os.environ["CLUSTERFN_JOB"].split("/")[1]
"""


@pytest.fixture
def month(bench: Bench, tmp_path: Path) -> Month:
    made = Month(bench, tmp_path / "tmp")
    made.tmp.mkdir()
    return made


def squeue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue in $PATH that says what a file holds, or fails without it; the file."""
    folder.mkdir()
    (folder / "squeue").write_text(f"#!/bin/sh\nexec cat '{folder}/listed'\n")
    (folder / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "listed"


def blob(bench: Bench, name: str, size: int) -> Path:
    """A large argument, as an agent has written it."""
    path = bench.root / "blobs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def held_lock(bench: Bench) -> FolderLock:
    """A lock of the builder, held by a process of this boot that has this one's pid."""
    root = str(bench.root)
    for folder, name, text in (
        (Path(beats_folder(root)), "other", f"{0:012d}\n{json.dumps(identify_process())}\n"),
        (bench.root / "builds" / "lock", "1", "other"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return FolderLock(str(bench.root / "builds" / "lock"), LockHolder(root), is_kept=False)


def next_call(month: Month) -> None:
    """The user's next call, which looks after the queue of the machine."""
    ran = month.bench.root.parent / f"ran-{len(month.called)}"
    month.called.append(ran)
    month.bench.job("def f(path):\n    open(path, 'w').close()\n", str(ran), **ONE_CORE).start().wait(150)


def outcomes(job: Job) -> list[dict[str, Any]]:
    """Of all attempts so far."""
    paths = sorted(job.folder.glob("attempts/*/outcome.json"), key=lambda path: int(path.parent.name))
    return [json.loads(path.read_text()) for path in paths]


def last_outcome(job: Job) -> dict[str, Any]:
    return (outcomes(job) or [{"final": False}])[-1]


def half_sent(bench: Bench) -> list[Path]:
    """What an agent leaves that is killed while it writes a large argument and a job."""
    part = blob(bench, "half.part-7-1", 1000)
    folder = bench.root / "jobs" / "0123456789abcdef.part-7-2"
    folder.mkdir()
    (folder / "spec.json").write_text("{}")
    return [part, folder]


@pytest.mark.long
@pytest.mark.fault("30 36")
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: its jobs run in a network namespace of their own")
def test_a_month_removes_what_is_over_and_nothing_else(
    month: Month, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, go = month.bench, tmp_path / "go"
    listed = squeue(tmp_path / "bin", monkeypatch)
    month.end_job(KEEP_DAYS)
    runs = bench.job(WAITS, str(go), requeue={"node": 3}, **ONE_CORE)
    runs.start(TMPDIR=str(month.tmp))
    until(lambda: any(event["event"] == "running" for event in runs.events()))
    waits = bench.job(WAITS, str(go), requeue={"node": 3}, **ONE_CORE)
    assert waits.start(TMPDIR=str(month.tmp)).wait(150) == 20, waits.log()
    pending = bench.job(WAITS, str(go), scheduler="slurm", keep_days=KEEP_DAYS)
    listed.write_text(f"f.{pending.id}\n")
    month.open = {job.id: job for job in (runs, waits, pending)}
    used, events = blob(bench, "used", 100_000), calendar(month, listed, pending)
    sizes = []
    for day in range(31):
        record_use(str(used), str(bench.root))
        blob(bench, f"of-day-{day}", 10_000)
        for number in range(A_DAY):
            month.end_job(LONG_DAYS if day % 7 == 0 and number == 0 else KEEP_DAYS)
            month.pass_time(4 * HOUR_S)
        events.get(day, lambda: None)()
        month.purge_tmp()
        assert month.wrong() == []
        assert used.exists()
        month.pass_time(DAY_S - A_DAY * 4 * HOUR_S)
        sizes.append(month.size() - 10_000 * (day + 1))  # these stay as long as the job of the first day is not over
    assert max(sizes[20:]) < 1.5 * max(sizes[10:20]), sizes

    go.touch()
    listed.write_text("")
    next_call(month)
    until(lambda: all(last_outcome(job)["final"] for job in (runs, waits)))
    until(lambda: all(ran.exists() for ran in month.called) and not month.processes())
    for job in (runs, waits):
        assert last_outcome(job)["kind"] == "returned", job.log()
        assert [each["final"] for each in outcomes(job)[:-1]] == [False] * (len(outcomes(job)) - 1)
        assert len(outcomes(job)) > 1, "a restart of the machine interrupted it"
    month.open = {}
    for _ in range(20):
        month.end_job(KEEP_DAYS)
        month.pass_time(DAY_S)
    assert month.overdue() == [] and month.wrong() == []
    assert sorted(path.name for path in (bench.root / "blobs").iterdir()) == []
    assert not waits.folder.exists() and not runs.folder.exists() and not pending.folder.exists()


def calendar(month: Month, listed: Path, pending: Job) -> dict[int, Callable[[], object]]:
    """What happens in the evening of which day."""
    bench = month.bench

    def clock(ahead_s: float) -> Callable[[], object]:
        """The clock is wrong while one job ends, and is put right."""

        def event() -> None:
            month.set_clock(ahead_s)
            month.end_job(KEEP_DAYS)
            month.set_clock(0.0)
            month.end_job(KEEP_DAYS)

        return event

    def restart() -> None:
        parts, lock = half_sent(bench), held_lock(bench)
        assert not lock.take()
        month.restart()
        until(lock.take, "the lock of a process before the restart, whose pid another has now")
        lock.release()
        next_call(month)
        month.pass_time(2 * DAY_S)
        for part in parts:
            remove_old_parts(str(part.parent))
        assert [part for part in parts if part.exists()] == []

    def log_out() -> None:
        """The job that ran is dead, and not by a restart: with the next call the one begins that waited."""
        month.log_out()
        next_call(month)

    def silent_scheduler() -> None:
        text = listed.read_text()
        listed.unlink()
        for _ in range(2):
            month.pass_time(DAY_S)
            month.end_job(KEEP_DAYS)
        listed.write_text(text)

    def abandoned() -> None:
        """A client is killed between sending a job and starting it."""
        sent = bench.job("def f():\n    return 1\n", keep_days=KEEP_DAYS)
        for _ in range(3):
            month.pass_time(DAY_S)
            month.end_job(KEEP_DAYS)
        assert not sent.folder.exists()

    return {
        2: log_out,
        4: clock(-HOUR_S),
        6: clock(+HOUR_S),
        8: clock(20 * DAY_S),
        10: restart,
        13: abandoned,
        15: clock(-2 * DAY_S),
        17: silent_scheduler,
        22: restart,
        25: clock(9 * DAY_S),
    }


def test_a_site_that_purges_files_leaves_no_folders_for_ever(month: Month) -> None:
    """While the user is away nothing of ours looks; the site removes files, and not the folders."""
    jobs = [month.end_job(KEEP_DAYS) for _ in range(3)]
    month.pass_time(20 * DAY_S)
    part = month.bench.ended()
    month.pass_time(20 * DAY_S)
    (part.folder / "spec.json").unlink()
    assert month.purge_root(days=30) > 0
    assert all(job.folder.exists() for job in jobs)
    for _ in range(4):
        last = month.end_job(KEEP_DAYS)
        month.pass_time(1.1 * DAY_S)
        remove_expired(JobFolder(str(last.folder)))
    assert [job.id for job in jobs if job.folder.exists()] == []
    assert last.folder.exists() and (part.attempt / "value.pkl").exists(), "what holds a file is not judged by folders"
