"""What clusterfn adds to sbatch by itself, where a site refuses it: it goes without, or says what it added."""

from __future__ import annotations

import pytest

from clusterfn.config.job_spec import Group
from clusterfn.config.spec import Resources
from clusterfn.errors import ConfigError
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import PENDING, RUNNING, Answer, JobState
from tests.golden.samples import SLURM as HOST
from tests.golden.samples import job

MEMORY = Answer(1, "", "sbatch: error: Memory specification can not be satisfied\n")
TIME = Answer(1, "", "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or …)\n")


def slurm(clusters: str | None = None):
    host = HOST if clusters is None else HOST._replace(scheduler_options={"clusters": clusters})
    return scheduler_for(host, {"user": "ada"})


def request(**resources):
    asked = Resources(**{"cores": 1, "memory_bytes": 2**32, "time_s": 3600.0, **resources})
    return slurm().submission(job(host=HOST, resources=asked))


def test_the_minute_that_is_added_is_taken_back_once() -> None:
    first = request()
    again = slurm().again(first, TIME)

    assert "--time=61" in first.argv and again is not None
    assert "--time=60:00" in again.argv and len(again.argv) == len(first.argv)
    assert slurm().again(again, TIME) is None


@pytest.mark.parametrize(
    "answer",
    [Answer(0, "7\n", MEMORY.err), Answer(None, "", MEMORY.err), Answer(1, "", "sbatch: error: no such account")],
)
def test_nothing_else_is_tried_again(answer: Answer) -> None:
    assert slurm().again(request(), answer) is None
    assert slurm().again(request(memory_bytes=None), MEMORY) is None


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (JobState(PENDING, "PENDING", "PartitionTimeLimit", "12"), ("scontrol", "update", "JobId=12", "TimeLimit=60")),
        (
            JobState(PENDING, "PENDING", "PartitionConfig", "12_[1-9]"),
            ("scontrol", "update", "JobId=12", "TimeLimit=60"),
        ),
        (JobState(PENDING, "PENDING", "Priority", "12"), ()),
        (JobState(RUNNING, "RUNNING", "PartitionTimeLimit", "12"), ()),
    ],
)
def test_a_job_that_is_held_for_its_time_gives_its_added_minute_back(state: JobState, command) -> None:
    assert slurm().loosen_command(state, 3600.0) == command
    assert slurm().loosen_command(state, None) == ()


def test_what_the_plugins_of_a_site_say_is_a_note_unless_sbatch_failed() -> None:
    said = "sbatch: lua: your project ends soon\nsome banner\nsbatch: \n"

    assert slurm().notes(Answer(0, "7\n", said)) == ["SLURM says: your project ends soon"]
    assert slurm().notes(Answer(1, "", said)) == []


def test_a_map_on_a_site_without_arrays_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no job arrays"):
        slurm().elements(job(host=HOST, group=Group(12, 4, 3, 3)), range(1, 4), 0)
