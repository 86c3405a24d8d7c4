"""Jobs are kept as long as their host says, and no longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.host import Bench, obey_modes
from tests.bridge.host import Job as Laid
from tests.bridge.layout import layout_bridge

ONE = "def f():\n    return 1\n"
DAY_S = 86400


def age(path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def aged_job(bench: Bench, days: float, **spec):
    job = bench.ended(**{"keep_days": 3.0, **spec})
    age(job.attempt / "outcome.json", days)
    (bench.root / "expired").touch()
    return job


def test_a_job_that_was_due_when_somebody_looked_last_is_removed_with_the_next(bench: Bench):
    old, young = aged_job(bench, 4.3), aged_job(bench, 4.0)
    age(bench.root / "expired", 1.1)

    bench.run(ONE)

    assert not old.folder.exists()
    assert young.folder.exists()


def test_each_job_is_kept_as_long_as_it_says_itself(bench: Bench):
    """Hosts that share a home share the root, and each has a `keep:` of its own."""
    long, short = aged_job(bench, 100, keep_days=365.0), aged_job(bench, 4.3, keep_days=1.0)
    age(bench.root / "expired", 1.1)

    bench.run(ONE, keep_days=1.0)

    assert long.folder.exists()
    assert not short.folder.exists()


@pytest.mark.fault("36")
def test_a_clock_that_was_ahead_stops_no_later_look(bench: Bench):
    old = aged_job(bench, 8)
    age(bench.root / "expired", -20_000)

    bench.run(ONE)
    assert old.folder.exists()
    age(bench.root / "expired", 1.1)
    bench.run(ONE)

    assert not old.folder.exists()


def test_a_job_without_a_final_outcome_is_never_removed(bench: Bench):
    waiting = bench.job(ONE)
    age(waiting.folder, 100)

    bench.run(ONE, keep_days=3.0)

    assert waiting.folder.exists()


def test_a_root_is_looked_through_once_a_day(bench: Bench):
    old = aged_job(bench, 4.3)

    bench.run(ONE, keep_days=3.0)

    assert old.folder.exists()


@pytest.mark.parametrize("damage", ["", "garbage", "[]", "null"])
def test_a_damaged_job_does_not_keep_the_others(bench: Bench, damage):
    old, damaged = aged_job(bench, 4.3), aged_job(bench, 4.3)
    (damaged.attempt / "outcome.json").write_text(damage)
    age(damaged.attempt / "outcome.json", 4.3)
    first = bench.root / "jobs" / ("0" * 16)
    damaged.folder.rename(first)
    age(bench.root / "expired", 1.1)

    _, outcome = bench.run(ONE, keep_days=3.0)

    assert outcome["kind"] == "returned"
    assert not old.folder.exists()
    assert first.exists()


def pass_days(bench: Bench, days: float) -> None:
    """All files and folders become so much older."""
    for folder, _, names in os.walk(bench.root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            then = os.lstat(path).st_mtime - days * DAY_S
            os.utime(path, (then, then), follow_symlinks=False)


def test_a_site_that_purges_files_leaves_no_folders_for_ever(bench: Bench):
    """While the user is away nothing of ours looks; the site removes files, and not the folders."""
    jobs = [bench.ended(keep_days=5.0) for _ in range(3)]
    pass_days(bench, 20)
    part = bench.ended()
    pass_days(bench, 20)
    for job in jobs:
        for path in [path for path in job.folder.rglob("*") if path.is_file()]:
            path.unlink()
    (part.folder / "spec.json").unlink()
    assert all(job.folder.exists() for job in jobs)

    for _ in range(5):
        last, _ = bench.run(ONE, keep_days=5.0)
        pass_days(bench, 1.1)

    assert [job.id for job in jobs if job.folder.exists()] == []
    assert last.folder.exists() and (part.attempt / "value.pkl").exists(), "what holds a file is not judged by folders"


def test_what_was_half_removed_goes_and_what_is_half_uploaded_stays(bench: Bench):
    old, sent = aged_job(bench, 4.3), aged_job(bench, 4.3)
    old.folder.rename(old.folder.with_name(".expired-" + old.id))
    part = sent.folder.rename(sent.folder.with_name(sent.id + ".part-7-1"))
    age(bench.root / "expired", 1.1)

    bench.run(ONE, keep_days=3.0)

    assert part.exists()
    assert list((bench.root / "jobs").glob(".expired-*")) == []


@pytest.mark.parametrize("half_removed", [False, True])
def test_a_job_goes_also_where_its_function_has_made_folders_read_only(bench: Bench, half_removed: bool):
    old, looks = aged_job(bench, 4.3), bench.job(ONE, keep_days=3.0)
    kept = old.attempt / "work" / "weights"
    kept.mkdir(parents=True)
    (kept / "of-one.bin").touch()
    (old.attempt / "work" / "shut").mkdir(mode=0)
    (bench.root / "jobs").chmod(0o700)  # as an agent makes it
    for folder in (kept, old.attempt / "work", old.folder):
        folder.chmod(0o500)
    if half_removed:
        old.folder.rename(old.folder.with_name(".expired-" + old.id))
    age(bench.root / "expired", 1.1)

    looks.start(before=obey_modes).wait(150)

    assert [path.name for path in (bench.root / "jobs").iterdir()] == [looks.id]


def stored(bench: Bench, days: float) -> dict[str, Path]:
    """One of each kind of what is sent once, used last so many days ago."""
    places = {kind: bench.root / kind / f"{days:g}" for kind in ("blobs", "files", "sources", "shims", "bridge")}
    for kind, path in places.items():
        path.parent.mkdir(exist_ok=True)
        if kind == "blobs":
            path.write_bytes(b"x" * 1000)
            path.chmod(0o400)
        else:
            path.mkdir()
            (path / "file").write_bytes(b"x" * 1000)
        age(path, days)
    return places


def sent(bench: Bench, days: float, *more: str, **spec: Any) -> Laid:
    """A job's folder that was laid out so many days ago, with more files, and was never started."""
    job = bench.job(ONE, **spec)
    for name in more:
        (job.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (job.folder / name).write_text("{}")
    for path in [*job.folder.rglob("*"), job.folder]:
        age(path, days)
    return job


def clean(bench: Bench, *words: str) -> dict[str, Any]:
    argv = [sys.executable, "-I", "-S", str(bench.bridge / "supervise.py"), "clean", str(bench.root), *words]
    return json.loads(subprocess.run(argv, capture_output=True, check=True, text=True).stdout)


def tidied(bench: Bench, keep_days: float = 14, older_s: float | None = None) -> dict[str, Any]:
    return clean(bench, str(keep_days * DAY_S), "" if older_s is None else str(older_s), "")


def test_what_no_client_has_asked_for_as_long_as_jobs_are_kept_is_removed(bench: Bench):
    old, young = stored(bench, 15), stored(bench, 13)

    told = tidied(bench)

    assert [kind for kind, path in old.items() if os.path.lexists(path)] == []
    assert [kind for kind, path in young.items() if not path.exists()] == []
    assert told["kinds"]["blobs"] == {"count": 2, "bytes": 2000, "gone": 1, "freed": 1000}


def test_what_was_sent_once_is_kept_as_long_as_the_job_that_is_kept_longest(bench: Bench):
    """Hosts that share a home share the root."""
    aged_job(bench, 1, keep_days=30.0)
    found = stored(bench, 15)

    tidied(bench, 1)

    assert all(path.exists() for path in found.values())


@pytest.mark.parametrize("sign", ["ticket", "heartbeat", "started"])
def test_nothing_goes_that_a_job_which_waits_or_runs_was_sent_with(bench: Bench, sign: str):
    job = sent(bench, 20, "attempts/1/heartbeat") if sign == "heartbeat" else sent(bench, 20, keep_days=1.0)
    if sign == "ticket":
        (bench.root / "machines" / "this" / "queue").mkdir(parents=True)
        (bench.root / "machines" / "this" / "queue" / f"{job.id}.3").touch()
    elif sign == "heartbeat":
        age(job.attempt / "heartbeat", 0.001)
    else:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        (job.folder / "started").write_text(f"{boot} {Path('/proc/self/stat').read_text()}")
        age(job.folder / "started", 20)
        age(job.folder, 20)
    before, after = stored(bench, 21), stored(bench, 19)
    an_hour_before = stored(bench, 20 + 1 / 24)

    told = tidied(bench)

    assert told["waiting"] == [job.id] and job.folder.exists()
    assert not [path for path in before.values() if path.exists()]
    assert all(path.exists() for path in (*after.values(), *an_hour_before.values()))


def test_what_a_process_that_is_gone_has_set_aside_goes_when_it_is_due(bench: Bench):
    old, young = stored(bench, 15)["sources"], stored(bench, 13)["sources"]
    left = [path.rename(path.with_name(f".aside-{path.name}-0a1b2c3d")) for path in (old, young)]

    tidied(bench)

    assert [path.exists() for path in left] == [False, True]


def test_a_job_that_its_client_never_started_goes_after_a_day_with_its_secrets(bench: Bench):
    old, young = sent(bench, 1.1, "secrets"), sent(bench, 0.9, "secrets")

    tidied(bench)

    assert not old.folder.exists()
    assert young.folder.exists()


# Lists a job of a hidden partition in another cluster, and obeys what narrows the list.
SQUEUE = """#!/bin/sh
echo "$*" >> "$0.asked"
case "$*" in *--all*) ;; *) exit 0;; esac
case "$*" in *--clusters=far*) ;; *) exit 0;; esac
[ -z "$SQUEUE_PARTITION" ] || exit 0
{says}
"""


def squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> Path:
    """A squeue in $PATH; the file of what it was asked."""
    (folder / "squeue").write_text(SQUEUE.format(says=says))
    (folder / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_PARTITION", "short")
    return folder / "squeue.asked"


@pytest.mark.parametrize(
    ("says", "stays"),
    [
        pytest.param("echo f.JOB", True, id="listed"),
        pytest.param("echo f.another", False, id="not listed"),
        pytest.param("exit 1", True, id="failed"),
        pytest.param("echo slurm_load_jobs error: Invalid user >&2", True, id="complained with status 0"),
        pytest.param("echo squeue: error: Ignoring obsolete FastSchedule >&2", False, id="complains of slurm.conf"),
        pytest.param('[ "$(wc -l < "$0.asked")" != 2 ] || echo f.JOB', True, id="listed at the second look"),
    ],
)
def test_a_job_that_slurm_may_still_start_stays(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, stays: bool
):
    job = sent(bench, 30, scheduler="slurm", clusters="far")
    squeue(tmp_path, monkeypatch, says.replace("JOB", job.id))

    tidied(bench)

    assert job.folder.exists() == stays


def test_each_scheduler_is_asked_for_its_own_jobs(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One root may serve two of them."""
    jobs = [sent(bench, 30, scheduler=name) for name in ("slurm", "grid_engine", "slurm", "grid_engine")]
    squeue(tmp_path, monkeypatch, "exit 0")
    (tmp_path / "qstat").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "qstat").chmod(0o755)

    tidied(bench)

    assert [job.folder.exists() for job in jobs] == [False, True, False, True]


@pytest.mark.parametrize("older_s", [None, 0.0])
def test_a_slurm_job_without_an_outcome_is_kept_whatever_squeue_says(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older_s: float | None
):
    young = sent(bench, 2.9, "secrets", scheduler="slurm", keep_days=3.0)
    old = sent(bench, 3.1, scheduler="slurm", keep_days=3.0)
    squeue(tmp_path, monkeypatch, "exit 0")

    tidied(bench, 1, older_s=older_s)

    assert (young.folder / "secrets").exists()
    assert not old.folder.exists()


def test_a_job_that_slurm_has_listed_is_not_removed_by_the_next_look_that_misses_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    job = sent(bench, 30, scheduler="slurm", clusters="far")
    squeue(tmp_path, monkeypatch, f"echo f.{job.id}")
    tidied(bench)
    squeue(tmp_path, monkeypatch, "exit 0")

    tidied(bench)

    assert job.folder.exists()


@pytest.mark.parametrize("older_s", [None, 0.0])
def test_a_job_whose_checkpoint_a_waiting_job_resumes_stays(bench: Bench, older_s: float | None):
    old, other = aged_job(bench, 20), aged_job(bench, 20)
    waiting = sent(bench, 0.5, resume=old.id)

    told = tidied(bench, older_s=older_s)

    assert old.folder.exists() and waiting.folder.exists()
    assert not other.folder.exists()
    assert told["kinds"]["jobs"]["count"] == 3


def test_the_bridge_that_looks_stays_however_old_it_is(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    other = stored(bench, 100)["bridge"]
    own = layout_bridge(bench.root / "bridge" / "own")
    age(own, 100)

    monkeypatch.setattr(bench, "bridge", own)
    tidied(bench)

    assert (own / "supervise.py").exists()
    assert not other.exists()


def test_a_job_that_died_without_an_outcome_goes_when_nothing_was_heard_of_it_for_as_long_as_it_is_kept(bench: Bench):
    old = sent(bench, 3.1, "attempts/1/heartbeat", "claim", keep_days=3.0)
    young = sent(bench, 2.9, "attempts/1/heartbeat", "claim", keep_days=3.0)

    tidied(bench)

    assert not old.folder.exists()
    assert young.folder.exists()


def test_a_person_may_have_removed_what_is_younger_and_sees_it_before(bench: Bench):
    old, young = aged_job(bench, 2), aged_job(bench, 0.5)
    blob, used = stored(bench, 2)["blobs"], stored(bench, 0.05)["blobs"]

    dry = clean(bench, str(14 * DAY_S), str(1 * DAY_S), "dry")
    assert old.folder.exists() and blob.exists()
    told = clean(bench, str(14 * DAY_S), str(1 * DAY_S), "")

    assert dry == told
    assert told["kinds"]["jobs"]["count"] == 2 and told["kinds"]["jobs"]["gone"] == 1
    assert not old.folder.exists() and not blob.exists()
    assert young.folder.exists() and used.exists()
    told = clean(bench, str(14 * DAY_S), "0", "")
    assert not young.folder.exists() and used.exists()  # a client may have asked for it just before
    assert told["recent"] == 5 and dry["recent"] == 0


def test_what_a_waiting_job_takes_stays_and_so_do_the_modules_of_each_job_that_stays(bench: Bench):
    sources = bench.root / "sources" / "mine"
    sources.mkdir(parents=True)
    old, gone = aged_job(bench, 9, sys_path=[str(sources)]), aged_job(bench, 9)
    waits = bench.job(ONE, after={old.id: {"name": "f", "items": None}})
    age(sources, 100)

    found = tidied(bench, 3)

    assert old.folder.exists() and sources.exists() and not gone.folder.exists()
    assert found["waiting"] == [waits.id]
    argv = [sys.executable, "-I", "-S", str(bench.bridge / "supervise.py"), "remove", str(bench.root), "", old.id]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["kept"] == [{"id": old.id, "why": f"job {waits.id} takes its value"}]
