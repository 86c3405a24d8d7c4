"""Grid Engine on the host: a job by its variables, and what its commands say of other jobs."""

import os
from pathlib import Path

import pytest

from clusterfn.bridge.layout import UNSATISFIABLE
from clusterfn.bridge.schedulers.registry import scheduler_named, scheduler_of_job
from clusterfn.bridge.supervisor.verdict import AttemptEnded

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
def scheduler(programs):
    return scheduler_named("grid_engine")


@pytest.mark.parametrize(("task", "number"), [("undefined", "7"), ("3", "7_3"), (None, "7")])
def test_a_job_has_its_number_and_a_task_that_of_its_array(scheduler, monkeypatch, task, number):
    monkeypatch.setenv("JOB_ID", "7")
    if task is not None:
        monkeypatch.setenv("SGE_TASK_ID", task)
    assert scheduler.submission_id() == number


def test_outside_of_a_job_there_is_no_number(scheduler):
    assert scheduler.submission_id() is None
    assert scheduler_of_job({"SGE_TASK_ID": "undefined"}) is not None


def test_a_job_that_was_started_again_is_not_the_one_before(scheduler, monkeypatch):
    assert scheduler.restarts() == 0
    monkeypatch.setenv("RESTARTED", "1")
    assert scheduler.restarts() == int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])


def test_jobs_are_known_by_their_ids(scheduler, programs):
    programs("qstat", f"sed '/^=/,$d' '{RECORDED}/watch.txt'")
    assert "0123456789abcdef" in scheduler.listed_jobs("")


@pytest.mark.parametrize("body", ["exit 1", "echo error >&2; exit 1"])
def test_a_master_that_does_not_answer_knows_nothing(scheduler, programs, body):
    programs("qstat", body)
    assert scheduler.listed_jobs("") is None


def test_tasks_that_wait_are_taken_out_of_the_queue_and_others_are_left(scheduler, programs, monkeypatch):
    monkeypatch.setenv("JOB_ID", "26")
    programs("qstat", f"sed -n '/<job_info>/,/<.job_info>/p' '{RECORDED}/watch.txt'")
    calls = programs("qdel", "exit 0")
    scheduler.cancel_waiting_elements()
    assert [line for line in calls.read_text().splitlines() if line.startswith("qdel")] == [
        "qdel 26 -t 3", "qdel 26 -t 4",
    ]  # fmt: skip


def test_gpus_of_a_resource_map_are_the_jobs(scheduler, monkeypatch):
    monkeypatch.setenv("SGE_HGR_gpu", "1 3")
    assert scheduler.find_gpus(2, lambda: 4) == ["1", "3"]


def test_what_the_site_set_is_left_as_it_is(scheduler, programs, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    programs("nvidia-smi", "exit 0")
    assert scheduler.find_gpus(1, lambda: 4) is None


def test_a_host_with_more_gpus_than_asked_for_is_refused(scheduler, programs):
    programs("nvidia-smi", "exit 0")
    with pytest.raises(AttemptEnded) as refusal:
        scheduler.find_gpus(1, lambda: 4)
    assert refusal.value.verdict.kind == UNSATISFIABLE
    assert "does not say which of the 4 GPUs" in refusal.value.verdict.message
    assert scheduler.find_gpus(4, lambda: 4) is None
