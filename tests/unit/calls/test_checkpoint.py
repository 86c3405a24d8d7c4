"""`resume=` finds the job whose checkpoint a call begins with, and refuses one that has not ended."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from clusterfn.bridge import layout
from clusterfn.calls import checkpoint
from clusterfn.config.options import Options
from clusterfn.config.spec import Resources
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
