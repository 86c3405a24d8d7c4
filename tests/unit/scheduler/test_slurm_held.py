"""A job in an allocation that is held: what is sent, and what the host decides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn.bridge.layout import STEP
from clusterfn.bridge.schedulers.slurm import SlurmOnHost
from clusterfn.bridge.schedulers.slurm_allocation import misfit
from clusterfn.config.job_spec import JobSpec
from clusterfn.config.spec import Resources
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import Answer, Evidence, Submission
from tests.golden.samples import SLURM as HOST
from tests.golden.samples import job

RECORD = {"id": "1234", "job": "7f3a", "node": "n1", "cores": 8, "memory_mb": 16384, "gpus": 1, "gpu_type": "a100",
          "time_s": 7200.0, "ends": 10_000.0}  # fmt: skip
slurm = scheduler_for(HOST, {"user": "ada"})
ASKED = {"name": "train", "cores": 2, "memory_mb": 4096, "gpus": 1, "gpu_type": None, "time_s": None}


def words_in_held(spec: JobSpec) -> tuple[str, ...]:
    """The command that starts the job in the held allocation."""
    own = scheduler_for(spec.host, {"user": "ada"})
    request = own.into_held(spec, own.submission(spec))
    assert isinstance(request, Submission), request
    return request.argv


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, ""),
        ({"cores": 8, "memory_mb": 16384, "gpu_type": "a100", "time_s": 3600}, ""),
        ({"cores": 9}, "it needs 9 cores, and that has 8"),
        ({"memory_mb": 20000}, "it needs 20000 MB of memory, and that has 16384"),
        ({"gpus": 2}, "it needs 2 GPUs, and that has 1"),
        ({"gpu_type": "h100"}, "it needs GPUs of type h100"),
        ({"time_s": 9000}, "5000 s are left of that and it may take 9000 s"),
    ],
)
def test_a_job_fits_by_its_size_and_time(asked: dict[str, Any], why: str) -> None:
    assert misfit(RECORD, {**ASKED, **asked}, 5000.0) == why


def test_nothing_fits_into_its_last_seconds() -> None:
    assert misfit(RECORD, ASKED, 9980.0) == "20 s are left of that"


def test_an_allocation_without_a_limit_takes_every_time() -> None:
    assert misfit({**RECORD, "ends": None, "memory_mb": None}, {**ASKED, "time_s": 10**6}, 5000.0) == ""


def test_the_step_asks_for_the_jobs_own_share_and_sbatch_is_the_rest() -> None:
    spec = job(host=HOST, resources=Resources(cores=2, memory_bytes=2**30, gpus=1, gpu_type="a100", time_s=60.0))
    by_sbatch = slurm.submission(spec)

    argv = words_in_held(spec)

    python, *isolated, supervise, enter, folder, wanted = argv[:7]
    assert (isolated, enter, folder) == (["-I", "-S"], "enter", f"{spec.root}/held")
    assert supervise.endswith("/supervise.py")
    assert argv[7:] == by_sbatch.argv
    srun = json.loads(wanted)["srun"]
    own = {"--cpus-per-task=2", "--time=2", "--mem=1024M", "--gres=gpu:a100:1"}
    assert {"--exclusive", "--immediate", *own} <= set(srun)


def test_a_step_without_gpus_gets_none_of_the_allocations() -> None:
    spec = job(host=HOST, resources=Resources(cores=1))

    assert "--gres=none" in json.loads(words_in_held(spec)[6])["srun"]


def test_the_hosts_default_time_is_no_time_that_a_call_asks_for() -> None:
    host = HOST._replace(defaults=HOST.defaults._replace(time_s=3600.0))

    def time_of(time_s: float) -> Any:
        spec = job(host=host, resources=Resources(time_s=time_s))
        return json.loads(words_in_held(spec)[6])["time_s"]

    assert (time_of(3600.0), time_of(7200.0)) == (None, 7200.0)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"resources": Resources(nodes=2)}, "it has several tasks"),
        ({"resources": Resources(tasks_per_node=2)}, "it has several tasks"),
        ({"after": {"7f3a": {"name": "train"}}}, "it waits for other jobs"),
        ({"retries": 1}, "SLURM may start it again (retries= or requeue=)"),
        ({"requeue": {"timeout": 1}}, "SLURM may start it again (retries= or requeue=)"),
        ({"scheduler_options": {"qos": "long"}}, "it has options of its own (slurm=, or #SBATCH lines)"),
    ],
)
def test_some_kinds_of_jobs_never_enter(more: dict[str, Any], why: str) -> None:
    spec = job(host=HOST, **more)

    request = slurm.into_held(spec, slurm.submission(spec))

    assert request == why if why else isinstance(request, Submission)


def test_the_lines_for_the_user_are_found_among_those_of_sbatch() -> None:
    answer = Answer(0, "1235\n", "clusterfn: train is not in the held allocation 1234: why\nsbatch: info\n")

    assert slurm.notes(answer) == [
        "train is not in the held allocation 1234: why",
        "SLURM says: info",
    ]


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ("StepId=1234.5 UserId=1000 StartTime=2026-11-22T11:00:00 State=RUNNING", False),
        ("Job step 1234.5 not found", True),
        ("slurm_get_job_steps error: Invalid job id specified", True),
        ("slurm_load_jobs error: Unable to contact slurm controller", False),
        ("", False),
    ],
)
def test_a_step_that_slurm_does_not_know_has_ended(said: str, ends: bool) -> None:
    assert slurm.evidence_command("1234.5")[-3:] == ("show", "step", "1234.5")
    assert (slurm.explain(Evidence(said, "", "1234.5")) is not None) is ends


# on the host

SUPERVISE = """
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from clusterfn.bridge.supervisor.program import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A root with what is held, a job, and programs in place of SLURM's."""
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "record").write_text(json.dumps({**RECORD, "ends": None}))
    (tmp_path / "held" / "environment").write_bytes(b"HOME=/home/ada\0PATH=/usr/bin:/bin\0SLURM_JOB_ID=1234\0")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.sh").write_text('env > "$PWD/env"; echo x > "$PWD/started"\n')
    (tmp_path / "bin").mkdir()
    os.symlink(Path(clusterfn.__file__).parent, tmp_path / "clusterfn")  # beside supervise.py, as on a host
    for name, text in {
        "srun": 'echo > srun.said; while [ "$1" != --jobid=1234 ]; do shift; done; shift\n'
        'SLURM_JOB_ID=1234 SLURM_STEP_ID=7 exec "$@"',
        "sbatch": "echo 1235",
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o700)
    return tmp_path


def supervise(there: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the host's program, with these variables alone."""
    (there / "supervise.py").write_text(SUPERVISE)
    env = {"PATH": f"{there}/bin:/usr/bin:/bin", **variables}
    return subprocess.run(
        [sys.executable, str(there / "supervise.py"), *words], env=env, capture_output=True, text=True, timeout=60
    )


def enter(there: Path) -> subprocess.CompletedProcess[str]:
    wanted = {**ASKED, "folder": str(there / "job"), "srun": ["srun", "--exclusive"]}
    return supervise(there, "enter", str(there / "held"), json.dumps(wanted), "sbatch", HOME="/nowhere")


def hold(there: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    facts = {"cores": 1, "memory_mb": None, "gpus": 0, "gpu_type": None, "time_s": 60.0, "idle_s": 0}
    return supervise(there, "hold", str(there / "held"), json.dumps(facts), SLURM_JOB_ID="4321", **variables)


@pytest.mark.parametrize(
    ("why", "is_gone"), [("Invalid job id specified", True), ("Socket timed out on send/recv operation", False)]
)
def test_a_controller_that_does_not_answer_ends_no_allocation(there: Path, why: str, is_gone: bool) -> None:
    said = f"srun: error: Unable to confirm allocation for job 1234: {why}"
    advice = "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 1234"
    (there / "bin" / "srun").write_text(f"#!/bin/sh\nprintf '%s\\n' '{said}' '{advice}' >&2; exit 1\n")

    done = enter(there)

    assert done.stdout == "1235\n" and done.stderr.endswith(f"is not in the held allocation 1234: {said}\n")
    assert (there / "held").exists() is not is_gone


@pytest.mark.parametrize("name", ["record", "environment"])
def test_without_a_hold_sbatch_gets_the_job_and_nothing_is_said(there: Path, name: str) -> None:
    (there / "held" / name).unlink()

    done = enter(there)

    assert (done.stdout, done.stderr) == ("1235\n", "")


def test_it_ends_before_its_time_limit_if_no_job_can_enter_any_more(there: Path) -> None:
    ends = str(int(time.time()) + 20)

    assert hold(there, SLURM_JOB_END_TIME=ends, CLUSTERFN_JOB="7f3a/1").returncode == 0
    assert time.time() < int(ends)
    assert not (there / "held").exists()


BY_LIMIT = "slurmstepd: error: *** STEP 1234.5 ON n1 CANCELLED AT 2026-11-23T10:00:00 DUE TO TIME LIMIT ***"
BY_HAND = "slurmstepd: error: *** STEP 1234.5 ON n1 CANCELLED AT 2026-11-23T10:00:00 ***"


@pytest.mark.parametrize(
    ("state", "log", "kind", "says"),
    [
        ("COMPLETING", BY_LIMIT, "time", "reached its time limit"),
        ("COMPLETING", BY_HAND, "cancelled", "was cancelled"),
        ("TIMEOUT", "", "time", "reached its time limit"),
        ("CANCELLED", "", "cancelled", "was cancelled"),
        ("PREEMPTED", "", "taken_back", "was taken back for another job"),
        ("COMPLETED", "", "lost", "has ended"),
        ("RUNNING", "", None, ""),
    ],
)
def test_a_job_that_ends_with_the_allocation_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, log: str, kind: str | None, says: str
) -> None:
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho JobId=1234 JobState={state}\n")
    (tmp_path / "scontrol").chmod(0o700)
    (tmp_path / "log").write_text(f"{log}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "1234")
    monkeypatch.setenv(STEP, "1")

    found = SlurmOnHost().ending(str(tmp_path / "log"))

    message = f"the held allocation 1234, in which it ran, {says}"
    assert (found and (found.kind, found.message)) == (kind and (kind, message))


def test_two_that_hold_at_the_same_time_do_not_replace_each_other(there: Path) -> None:
    (there / "bin" / "scontrol").write_text("#!/bin/sh\necho JobId=1234 JobState=RUNNING\n")
    (there / "bin" / "scontrol").chmod(0o700)
    before = (there / "held" / "record").read_text()

    done = hold(there, CLUSTERFN_JOB="8f3a/1")

    assert (done.returncode, done.stderr) == (1, "the allocation 1234 is held already, by job 7f3a\n")
    assert (there / "held" / "record").read_text() == before
