"""Schedulers on the host: a job by its variables, what commands are told and inherit, and what their answers mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterfn.bridge.layout import CANCELLED, NODE, PREEMPTED, TAKEN_BACK, TIME, UNSATISFIABLE
from clusterfn.bridge.schedulers import grid_engine as sge
from clusterfn.bridge.schedulers import slurm
from clusterfn.bridge.schedulers.base import HostScheduler, run_command
from clusterfn.bridge.schedulers.registry import scheduler_named, scheduler_of_job
from clusterfn.bridge.supervisor.verdict import AttemptEnded

OBEYED = {
    "SLURM_CLUSTERS": "other", "SQUEUE_PARTITION": "short", "SCANCEL_INTERACTIVE": "1", "SCONTROL_FUTURE": "1",
    "SLURM_TIME_FORMAT": "relative",
}  # fmt: skip
NEEDED = {"SLURM_CONF": "/etc/a.conf", "SLURM_CONF_SERVER": "ctl", "SLURM_JWT": "token", "MUNGE_SOCKET": "/run/m"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may start a program more slowly than a scheduler may answer."""
    for module in (slurm, sge):
        monkeypatch.setattr(module, "run_command", lambda argv, _, *more, **how: run_command(argv, 600, *more, **how))


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostScheduler:
    for name in ("squeue", "scancel", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\nenv >'{tmp_path}/{name}.env'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, text in {**OBEYED, **NEEDED, "SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, text)
    return scheduler_named("slurm")


def inherited(tmp_path: Path, program: str) -> set[str]:
    path = tmp_path / f"{program}.env"
    names = {line.partition("=")[0] for line in path.read_text().splitlines()}
    path.unlink()
    return names


def test_no_command_obeys_what_a_login_exports_and_all_know_where_slurm_is(scheduler: HostScheduler, tmp_path):
    calls = {
        "squeue": [lambda: scheduler.listed_jobs("")],
        "scancel": [scheduler.cancel_waiting_elements],
        "scontrol": [
            scheduler.requeue, lambda: scheduler.ending(str(tmp_path / "log")), lambda: scheduler.node_address("n1"),
        ],
    }  # fmt: skip
    for program, several in calls.items():
        for call in several:
            call()  # type: ignore[operator]
            seen = inherited(tmp_path, program)
            assert not seen & OBEYED.keys() and seen >= NEEDED.keys(), program


Answers = Callable[[str, str], HostScheduler]


@pytest.fixture
def answers(scheduler: HostScheduler, tmp_path: Path) -> Answers:
    """Let a program of SLURM do this; it notes its words in a file."""

    def write(name: str, script: str) -> HostScheduler:
        (tmp_path / name).write_text(f"#!/bin/sh\necho \"$*\" >>'{tmp_path}/words'\n{script}\n")
        return scheduler

    return write


END = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-23T10:00:00%s ***\n"
BY_HAND, FOR_TIME, FOR_ANOTHER = END % "", END % " DUE TO TIME LIMIT", END % " DUE TO PREEMPTION"


@pytest.mark.parametrize(
    ("facts", "log", "kind"),
    [
        ("JobState=RUNNING Restarts=2", FOR_TIME, None),
        ("JobState=RUNNING Restarts=3", "", PREEMPTED),
        ("JobState=COMPLETING", "", None),
        ("JobState=COMPLETING", BY_HAND, CANCELLED),
        ("JobState=COMPLETING", FOR_ANOTHER, TAKEN_BACK),
        ("JobState=COMPLETING", BY_HAND + FOR_TIME, TIME),
        ("JobState=COMPLETING", END % " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", NODE),
        ("JobState=CANCELLED", "", CANCELLED),
        ("JobState=DEADLINE", "", TIME),
        ("JobState=REVOKED", "", TAKEN_BACK),
    ],
)
def test_a_job_that_slurm_ends_has_the_last_cause_that_it_names(answers, tmp_path, monkeypatch, facts, log, kind):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    (tmp_path / "log").write_text(log)

    verdict = answers("scontrol", f"echo JobId=7 {facts}").ending(str(tmp_path / "log"))

    assert (verdict and verdict.kind) == kind


def test_the_question_names_the_task_of_an_array_and_outlives_the_signal_that_ends_the_job(
    answers: Answers, tmp_path, monkeypatch
):
    """The last task of an array has its number, by which scontrol shows all tasks."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")

    restart = answers("scontrol", "kill -TERM $$; echo JobState=COMPLETING Restarts=1").ending("/nowhere")

    assert restart is not None and restart.kind == PREEMPTED
    assert (tmp_path / "words").read_text() == "-o show job 7_3\n"


@pytest.mark.parametrize(
    ("config", "status", "is_listed"),
    [
        ("RequeueExit             = 99", 99, True), ("RequeueExitHold = 3,90-100", 95, True),
        ("RequeueExit = (null)", 99, False), ("RequeueExit = 9", 99, False), ("", 99, False),
    ],
)  # fmt: skip
def test_a_site_lists_statuses_after_which_it_starts_jobs_again(answers, config, status, is_listed):
    assert answers("scontrol", f'echo "{config}"').starts_again_after(status) is is_listed


def test_a_job_that_slurm_does_not_requeue_says_why(answers: Answers):
    assert answers("scontrol", "exit 0").requeue() == ""
    assert answers("scontrol", "echo Job is held >&2; exit 1").requeue() == "scontrol requeue: Job is held"
    assert answers("scontrol", "exit 3").requeue() == "scontrol requeue: status 3"


def test_a_list_beside_a_new_error_is_not_believed(answers: Answers):
    listing, usual = "echo ada.7f3a; echo other", "echo squeue: error: Invalid user for SlurmUser slurm, ignored >&2"

    assert answers("squeue", f"{listing}; {usual}").listed_jobs("") == {"7f3a", "other"}
    assert answers("squeue", f"{listing}; {usual}; echo squeue: error: timed out >&2").listed_jobs("") is None
    assert answers("squeue", f"{listing}; exit 1").listed_jobs("") is None


def test_each_node_gets_its_tasks_and_the_first_one_no_second_time(scheduler: HostScheduler):
    one, four = (set(scheduler.launch_command(3, tasks, 2, "/job")) for tasks in (1, 4))

    assert one >= {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--relative=1", "--cpus-per-task=2"}
    assert four >= {"--nodes=3", "--ntasks=12", "--ntasks-per-node=4", "--distribution=block"}
    assert "--relative=1" not in four


RECORDED = Path(__file__).parents[3] / "golden" / "grid-engine-8.1.9"
VARIABLES = ("JOB_ID", "SGE_TASK_ID", "RESTARTED", "CUDA_VISIBLE_DEVICES", "SGE_BINARY_PATH", "QUEUE")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder in PATH for programs, which also keeps what they were called with."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(name, body):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\n{body}\n')
        path.chmod(0o755)
        return tmp_path / "calls"

    return write


@pytest.fixture
def grid_engine(programs):
    return scheduler_named("grid_engine")


@pytest.mark.parametrize(("task", "number"), [("undefined", "7"), ("3", "7_3"), (None, "7")])
def test_a_job_has_its_number_and_a_task_that_of_its_array(grid_engine, monkeypatch, task, number):
    monkeypatch.setenv("JOB_ID", "7")
    if task is not None:
        monkeypatch.setenv("SGE_TASK_ID", task)
    assert grid_engine.submission_id() == number


def test_outside_of_a_job_there_is_no_number(grid_engine):
    assert grid_engine.submission_id() is None
    assert scheduler_of_job({"SGE_TASK_ID": "undefined"}) is not None


def test_a_job_that_was_started_again_is_not_the_one_before(grid_engine, monkeypatch):
    assert grid_engine.restarts() == 0
    monkeypatch.setenv("RESTARTED", "1")
    assert grid_engine.restarts() == int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])


def test_jobs_are_known_by_their_ids(grid_engine, programs):
    programs("qstat", f"sed '/^=/,$d' '{RECORDED}/watch.txt'")
    assert "0123456789abcdef" in grid_engine.listed_jobs("")


@pytest.mark.parametrize("body", ["exit 1", "echo error >&2; exit 1"])
def test_a_master_that_does_not_answer_knows_nothing(grid_engine, programs, body):
    programs("qstat", body)
    assert grid_engine.listed_jobs("") is None


def test_tasks_that_wait_are_taken_out_of_the_queue_and_others_are_left(grid_engine, programs, monkeypatch):
    monkeypatch.setenv("JOB_ID", "26")
    programs("qstat", f"sed -n '/<job_info>/,/<.job_info>/p' '{RECORDED}/watch.txt'")
    calls = programs("qdel", "exit 0")
    grid_engine.cancel_waiting_elements()
    assert [line for line in calls.read_text().splitlines() if line.startswith("qdel")] == [
        "qdel 26 -t 3", "qdel 26 -t 4",
    ]  # fmt: skip


def test_gpus_of_a_resource_map_are_the_jobs(grid_engine, monkeypatch):
    monkeypatch.setenv("SGE_HGR_gpu", "1 3")
    assert grid_engine.find_gpus(2, lambda: 4) == ["1", "3"]


def test_what_the_site_set_is_left_as_it_is(grid_engine, programs, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    programs("nvidia-smi", "exit 0")
    assert grid_engine.find_gpus(1, lambda: 4) is None


def test_a_host_with_more_gpus_than_asked_for_is_refused(grid_engine, programs):
    programs("nvidia-smi", "exit 0")
    with pytest.raises(AttemptEnded) as refusal:
        grid_engine.find_gpus(1, lambda: 4)
    assert refusal.value.verdict.kind == UNSATISFIABLE
    assert "does not say which of the 4 GPUs" in refusal.value.verdict.message
    assert grid_engine.find_gpus(4, lambda: 4) is None
