"""Jobs of earlier programs: `resume=` finds whose checkpoint a call begins with, and no damaged line hides others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.calls import checkpoint, history
from clusterfn.config.options import Options
from clusterfn.config.spec import Resources, ResultPolicy
from clusterfn.errors import ConfigError

JOB = "7f3a000000000000"


@pytest.fixture
def job(tmp_path):
    """A job that runs, and has written a checkpoint."""
    folder = tmp_path / layout.JOBS / JOB
    for name in (layout.CHECKPOINT, f"{layout.ATTEMPTS}/1"):
        (folder / name).mkdir(parents=True)
    (folder / layout.CHECKPOINT / "epoch").touch()
    (folder / layout.SPEC).write_text("{}")
    return folder


def session(root):
    """A host on which commands run here."""

    def run(argv):
        done = subprocess.run(argv, capture_output=True, check=True)
        return SimpleNamespace(result=lambda timeout: SimpleNamespace(out=done.stdout))

    return SimpleNamespace(settings=SimpleNamespace(name="here"), root=str(root), connection=SimpleNamespace(run=run))


def ends(job):
    (job / layout.ATTEMPTS / "1" / layout.OUTCOME).write_text('{"kind": "cancelled", "final": true}\n')


def test_a_job_that_is_being_stopped_is_refused_until_it_has_ended(job, tmp_path):
    (job / layout.CANCEL).touch()

    with pytest.raises(ConfigError, match="that job is still being stopped") as refused:
        checkpoint.to_resume(session(tmp_path), "7f3a")
    assert refused.value.hint == "call again in a moment"

    ends(job)
    assert checkpoint.to_resume(session(tmp_path), "7f3a") == JOB


def test_a_job_that_nobody_stops_is_refused_at_once(job, tmp_path):
    with pytest.raises(ConfigError, match="that job is still running"):
        checkpoint.to_resume(session(tmp_path), "7f3a")


def test_digits_that_several_jobs_begin_with_are_rejected(job, tmp_path):
    other = job.with_name("7f3b000000000000")
    job.rename(other)
    (tmp_path / layout.JOBS / JOB).mkdir()
    (tmp_path / layout.JOBS / JOB / layout.SPEC).write_text("{}")

    with pytest.raises(ConfigError, match="resume='7f3' matches 2 jobs on here") as refused:
        checkpoint.to_resume(session(tmp_path), "7f3")
    assert list(refused.value.evidence) == [JOB, other.name] and refused.value.hint == "use a longer id"


def test_a_job_has_ended_whichever_of_its_attempts_says_so(job, tmp_path):
    """The names of their folders are in the order of texts: 1, 10, 2."""
    for attempt, final in ((1, False), (2, False), (10, True)):
        folder = job / layout.ATTEMPTS / str(attempt)
        folder.mkdir(exist_ok=True)
        (folder / layout.OUTCOME).write_text(f'{{"kind": "time", "final": {str(final).lower()}}}\n')

    assert checkpoint.to_resume(session(tmp_path), "7f3a") == JOB


BARE, SLURM = SimpleNamespace(has_nodes=False, requeues=True), SimpleNamespace(has_nodes=True, requeues=True)
ENGINE = SimpleNamespace(has_nodes=True, requeues=False, title="Grid Engine")


@pytest.mark.parametrize(
    ("options", "time_s", "scheduler", "says"),
    [
        (Options(warn_s=60.0), None, BARE, "warn_before= needs a time limit"),
        (Options(warn_s=60.0), 60.0, SLURM, 'warn_before="1min" must be shorter than time="1min"'),
        (Options(requeue={"timeout": 1}), None, SLURM, 'requeue= names "timeout", but the call has no time limit'),
        (Options(requeue={"node": 1}), 60.0, ENGINE, "requeue= is not supported with Grid Engine"),
    ],
)
def test_what_can_never_come_is_rejected(options, time_s, scheduler, says):
    resources = Resources(time_s=time_s)
    with pytest.raises(ConfigError, match=says) as caught:
        checkpoint.check_warning(options, resources, scheduler)
        checkpoint.check_requeue(options, resources, scheduler)
    assert caught.value.hint


def test_a_warning_before_slurm_s_own_limit_and_other_causes_need_no_time():
    checkpoint.check_warning(Options(warn_s=60.0), Resources(), SLURM)
    checkpoint.check_requeue(Options(requeue={"node": 1}), Resources(), BARE)


ID = "7f3a" * 4
WHOLE = {"id": ID, "host": "box", "config": "", "name": "train", "at": 1}
DAMAGED = [
    b'{"id": "7f3a', b'\xff\xfe "id": "7f3a\xff"', b'["id", "7f3a"]', b'7 "id": "7f3a"', b'"\\ud800"', b"[" * 100_000,
    json.dumps({**WHOLE, "at": "now"}).encode(), json.dumps({**WHOLE, "at": 10**400}).encode(),
    json.dumps({**WHOLE, "results": [1]}).encode(), json.dumps({**WHOLE, "secrets": 7}).encode(), b"\0" * 100,
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_hides_no_other_job(line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = tmp_path / "jobs.jsonl"
    ledger.write_bytes(line + b"\n" + json.dumps(WHOLE).encode() + b"\n")
    monkeypatch.setattr(history, "ledger_path", lambda: ledger)

    assert {entry.host for entry in history.entries("7f3a")} == {"box"}
    assert history.hosts(None) == ["box"]
    assert history.hosts_of("train") == ["box"]
    assert history.sent_within("7f3a", 2.0**62, ["box"]) == {ID}


@pytest.mark.parametrize(
    ("sent", "usual", "counts"),
    [
        ([ResultPolicy(data_only=True)], ResultPolicy(), ResultPolicy(data_only=True)),
        ([ResultPolicy()], ResultPolicy(data_only=True, max_bytes=9), ResultPolicy(data_only=True, max_bytes=9)),
        ([ResultPolicy(max_bytes=7), ResultPolicy(max_bytes=5)], ResultPolicy(max_bytes=9), ResultPolicy(max_bytes=5)),
    ],
)
def test_no_more_is_accepted_of_a_job_than_was_said_when_it_was_sent(sent, usual, counts, tmp_path, monkeypatch):
    monkeypatch.setattr(history, "ledger_path", lambda: tmp_path / "jobs.jsonl")
    job: Any = SimpleNamespace(id=ID, name="train", host="box")
    for policy in sent:
        history.remember(job, None, policy)

    assert history.results_of(ID[:4], usual) == counts
