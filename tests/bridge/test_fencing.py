"""However often a job is submitted, requeued or concluded: it runs once and has exactly one final outcome."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.bridge.host import Bench
from tests.bridge.layout import layout_bridge
from tests.processes import is_running
from tests.waiting import until

COUNT = "def f(path):\n    import time\n    open(path, 'a').write('ran\\n')\n    time.sleep(0.5)\n    return 1\n"
# The same, until a file is there.
HOLDS = (
    "def f(path):\n    import os, time\n    open(path, 'a').write('ran\\n')\n"
    "    while not os.path.exists(path + '-go'):\n        time.sleep(0.05)\n    return 1\n"
)
SLEEP = "def f():\n    import time\n    print('up', flush=True)\n    time.sleep(600)\n"


def final_outcomes(job) -> list[int]:
    """The attempts whose outcome is final."""
    found = []
    for path in sorted((job.folder / "attempts").iterdir()):
        if (path / "outcome.json").exists() and json.loads((path / "outcome.json").read_text())["final"]:
            found.append(int(path.name))
    return found


def test_a_second_submission_of_a_job_runs_nothing(bench: Bench, tmp_path: Path):
    job = bench.job(HOLDS, str(tmp_path / "ran"))

    scripts = [job.start() for _ in range(4)]
    until(lambda: job.log().count("another submission is at the job") == 3)
    (tmp_path / "ran-go").touch()
    codes = [script.wait(150) for script in scripts]

    assert codes == [0, 0, 0, 0]
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert final_outcomes(job) == [1]


def test_a_requeued_job_fences_the_attempt_before(bench: Bench):
    """The old supervisor still runs, as after the loss of a node that was not dead."""
    job = bench.job(SLEEP, scheduler="slurm")
    job.start(SLURM_JOB_ID="77")
    worker = job.worker_pid()
    job.wait_for_text("up")

    second = job.start(SLURM_JOB_ID="77", SLURM_RESTART_COUNT="1")
    until(lambda: not is_running(worker))
    (job.folder / "cancel").touch()

    assert second.wait(150) == 10
    assert (job.outcome(1)["kind"], job.outcome(1)["superseded_by"]) == ("superseded", 2)
    assert job.outcome(2)["kind"] == "cancelled"
    assert final_outcomes(job) == [2]


# In its first attempt for ever.
BEATS = """
def f(path):
    import os, time
    attempt = os.environ["CLUSTERFN_JOB"].rpartition("/")[2]
    while True:
        with open(path, "a") as file:
            file.write(attempt)
        if attempt == "2":
            return
        time.sleep(0.01)
"""


def test_a_requeued_job_begins_when_the_attempt_before_has_ended(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The supervisor of the one before looks every second, later on a busy machine, which gets more time for that."""
    longer = ("supervisor/attempt.py", "SETTLE_S = 2.0", "SETTLE_S = 8.0")
    monkeypatch.setattr(bench, "bridge", layout_bridge(tmp_path / "patient", longer))
    job = bench.job(BEATS, str(tmp_path / "beats"), scheduler="slurm")
    first = job.start(SLURM_JOB_ID="77")
    job.wait_for("running")

    job.start(SLURM_JOB_ID="77", SLURM_RESTART_COUNT="1").wait(150)
    first.wait(150)

    beats = (tmp_path / "beats").read_text()
    assert beats.lstrip("1") == "2", "no line of the first attempt came after the second had begun"
    assert final_outcomes(job) == [2]


def test_a_third_attempt_after_a_concluded_first_runs_nothing(bench: Bench, tmp_path: Path):
    job = bench.job(COUNT, str(tmp_path / "ran"), scheduler="slurm")
    for count in range(3):
        job.start(SLURM_JOB_ID="77", SLURM_RESTART_COUNT=str(count)).wait(150)

    assert (tmp_path / "ran").read_text() == "ran\n"
    assert [(job.outcome(n)["kind"], job.outcome(n)["superseded_by"]) for n in (2, 3)] == [("superseded", 1)] * 2
    assert final_outcomes(job) == [1]


def test_elements_of_an_array_are_distinguished(bench: Bench):
    job = bench.job("def f():\n    return 1\n", scheduler="slurm")
    job.start(SLURM_JOB_ID="9", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3").wait(150)

    assert (job.folder / "claim").read_text() == "7_3"


def test_a_submission_on_a_bare_host_is_named_by_its_script(bench: Bench):
    job = bench.job("def f():\n    return 1\n")
    script = job.start()
    script.wait(150)

    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (job.folder / "claim").read_text().startswith(f"{boot_id}:{script.pid}:")


def test_a_withdrawn_job_never_runs_and_a_second_request_is_answered_like_the_first(bench: Bench, tmp_path: Path):
    job = bench.job(COUNT, str(tmp_path / "ran"))
    wanted = json.dumps({"kind": "cancelled", "message": "withdrawn", "withdraw": True})

    said = [json.loads(job.call("conclude", stdin=wanted).stdout) for _ in range(2)]

    assert said == [{"attempt": 1, "kind": "cancelled", "won": True}] * 2, "the first answer may be lost"
    assert job.start().wait(150) == 0
    assert not (tmp_path / "ran").exists()
    assert final_outcomes(job) == [1]


def test_a_job_that_says_itself_that_it_was_withdrawn_is_one_that_was_withdrawn(bench: Bench):
    job = bench.job("def f():\n    return 1\n")
    attempt = job.folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    (job.folder / "claim").write_text("its supervisor")
    (attempt / "waiting").touch()
    wanted = json.dumps({"kind": "cancelled", "message": "withdrawn", "withdraw": True})
    (attempt / "begun").write_text("withdrawn")  # by an earlier request, whose answer was lost
    document = {"kind": "cancelled", "final": True, "message": "the job was withdrawn before it started"}
    (attempt / "outcome.json").write_text(json.dumps(document))

    assert json.loads(job.call("conclude", stdin=wanted).stdout)["won"]


def test_a_claimed_job_cannot_be_withdrawn(bench: Bench):
    job = bench.job("def f():\n    import time\n    time.sleep(0.5)\n    return 1\n")
    script = job.start()
    job.worker_pid()

    said = job.call("conclude", stdin=json.dumps({"kind": "cancelled", "message": "withdrawn", "withdraw": True}))

    assert json.loads(said.stdout) == {"attempt": None, "kind": None, "won": False}
    assert script.wait(150) == 0


def test_a_verdict_from_outside_ends_a_living_attempt(bench: Bench):
    job = bench.job(SLEEP)
    script = job.start()
    job.wait_for_text("up")

    said = job.call("conclude", stdin=json.dumps({"kind": "time", "message": "over", "stage": "scheduler"}))

    assert json.loads(said.stdout) == {"attempt": 1, "kind": "time", "won": True}
    assert script.wait(150) == 0
    assert (job.outcome()["kind"], job.outcome()["by"], job.outcome()["message"]) == ("time", "conclude", "over")
    assert job.tagged() == []


def test_a_verdict_from_outside_ends_what_a_dead_supervisor_left(bench: Bench):
    source = "def f():\n    import subprocess\n    print('up', flush=True)\n    subprocess.run(['sleep', '600'])\n"
    job = bench.job(source)
    script = job.start()
    job.wait_for_text("up")
    until(lambda: len(job.tagged()) == 2)
    supervisor = job.supervisor_pid()
    for pid in (script.pid, supervisor):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not is_running(script.pid) and not is_running(supervisor))

    job.call("conclude", stdin=json.dumps({"kind": "lost", "message": "gone"}))

    assert job.tagged() == []
    assert job.outcome()["kind"] == "lost"


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("lost", "submit"),
        ("node", "scheduler"),
        *(pytest.param(kind, "scheduler", marks=pytest.mark.long) for kind in ("lost", "cancelled")),
    ],
)
def test_a_job_that_its_user_cancelled_is_cancelled_whatever_its_scheduler_says(bench: Bench, kind, stage):
    job = bench.job(SLEEP)
    script = job.start()
    job.wait_for_text("up")
    os.killpg(script.pid, signal.SIGKILL)
    script.wait(150)  # else it seems to have the job still
    (job.folder / "cancel").touch()

    asked = {"kind": kind, "message": "SLURM no longer knows the job", "hint": "read the log", "stage": stage}
    job.call("conclude", stdin=json.dumps({**asked, "evidence": ["Invalid job id specified"]}))

    ended = job.outcome()
    assert (ended["kind"], ended["message"]) == ("cancelled", "the job was stopped on request")
    assert ended["evidence"] == ["Invalid job id specified"] and not ended["hint"]


def test_a_fenced_supervisor_ends_its_tree(bench: Bench):
    """Without a sweep from outside, as on another node."""
    job = bench.job(SLEEP)
    job.start()
    worker = job.worker_pid()
    job.wait_for_text("up")

    (job.attempt / "outcome.json").write_text('{"final": false, "kind": "superseded", "superseded_by": 2}')

    until(lambda: not is_running(worker))


def test_a_verdict_that_comes_too_late_changes_nothing(bench: Bench):
    job, _ = bench.run("def f():\n    return 1\n")

    said = job.call("conclude", stdin=json.dumps({"kind": "node", "message": "gone"}))

    assert json.loads(said.stdout) == {"attempt": 1, "kind": "returned", "won": False}
    assert job.outcome()["kind"] == "returned"


def test_a_verdict_after_a_preempted_attempt_is_in_a_new_one(bench: Bench):
    job = bench.job(SLEEP, scheduler="slurm")
    (job.attempt).mkdir(parents=True)
    (job.attempt / "outcome.json").write_text('{"final": false, "kind": "preempted", "superseded_by": null}')
    (job.folder / "claim").write_text("77")

    said = job.call("conclude", stdin=json.dumps({"kind": "node", "message": "gone"}))

    assert json.loads(said.stdout) == {"attempt": 2, "kind": "node", "won": True}
    assert final_outcomes(job) == [2]


SCONTROL = """#!/bin/sh
echo "JobId=77 JobName=f JobState={state} Reason=None Restarts={restarts} ExitCode=0:15"
"""


@pytest.fixture
def scontrol(tmp_path: Path):
    """A scontrol that says what it is told."""

    def say(state: str, restarts: int = 0) -> str:
        folder = tmp_path / "slurm"
        folder.mkdir(exist_ok=True)
        (folder / "scontrol").write_text(SCONTROL.format(state=state, restarts=restarts))
        (folder / "scontrol").chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    return say


@pytest.mark.parametrize(
    ("state", "restarts", "kind"),
    [("CANCELLED", 0, "cancelled"), ("COMPLETING", 1, "preempted"), ("TIMEOUT", 0, "time"), ("RUNNING", 0, "lost")],
)
def test_a_sigterm_is_explained_by_the_scheduler(bench: Bench, scontrol, state, restarts, kind):
    job = bench.job(SLEEP, scheduler="slurm")
    job.start(SLURM_JOB_ID="77", PATH=scontrol(state, restarts))
    job.wait_for_text("up")

    for pid in (job.supervisor_pid(), job.worker_pid()):
        with contextlib.suppress(ProcessLookupError):  # the supervisor may have ended its worker meanwhile
            os.kill(pid, signal.SIGTERM)

    until(job.has_outcome)
    assert job.outcome()["kind"] == kind
    assert job.outcome()["final"] == (kind != "preempted")
    assert job.outcome()["by"] == ("after" if kind == "lost" else "supervisor")


def test_after_a_preempted_attempt_the_job_runs_again(bench: Bench, scontrol):
    source = "def f():\n    import os, time\n    time.sleep(600 if '/1/' in os.getcwd() else 0)\n"
    job = bench.job(source, scheduler="slurm")
    first = job.start(SLURM_JOB_ID="77", PATH=scontrol("COMPLETING", 1))
    job.wait_for("running")
    os.kill(job.supervisor_pid(), signal.SIGTERM)
    assert first.wait(150) == 10

    job.start(SLURM_JOB_ID="77", SLURM_RESTART_COUNT="1").wait(150)

    assert [job.outcome(n)["kind"] for n in (1, 2)] == ["preempted", "returned"]
    assert final_outcomes(job) == [2]


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        ("setup:3:. a:b\n", "environment", "setup: of the host failed with exit code 3 at the line `. a:b`"),
        ("prolog:2:if x; then\ny\n", "environment", "prolog: of the host failed with exit code 2 at the line `if"),
        ("setup:1:", "environment", "setup: of the host failed with exit code 1; the function did not start"),
        ("module:cuda/12", "environment", "module cuda/12 could not be loaded"),
        ("137", "lost", "SIGKILL"),
        ("2", "lost", "exit code 2"),
    ],
)
def test_after_concludes_what_never_began(bench: Bench, status, kind, words):
    job = bench.job(SLEEP)
    (job.folder / "scheduler.log").write_text("line of the script\n")

    said = job.call("after", status)

    assert json.loads(said.stdout) == {"attempt": 1, "kind": kind, "won": True}
    assert words in job.outcome()["message"]
    assert job.outcome()["evidence"] == ["line of the script"]


def test_after_leaves_a_job_alone_that_another_submission_holds(bench: Bench):
    job = bench.job(SLEEP)
    (job.folder / "claim").write_text("another")

    assert job.call("after", "137").returncode == 0

    assert not (job.folder / "attempts").exists()


def test_after_concludes_for_its_own_start_and_not_for_a_requeued_one(bench: Bench):
    job = bench.job(SLEEP, scheduler="slurm")
    (job.folder / "claim").write_text("77")
    for number, owner in ((1, "77"), (2, "77 restart 1")):
        (job.folder / "attempts" / str(number)).mkdir(parents=True)
        (job.folder / "attempts" / str(number) / "owner").write_text(owner)

    said = job.call("after", "137", SLURM_JOB_ID="77", PATH="/usr/bin:/bin")

    assert json.loads(said.stdout) == {"attempt": 1, "kind": "lost", "won": True}
    assert not (job.folder / "attempts" / "2" / "outcome.json").exists()


def test_an_oom_that_only_the_scheduler_saw(bench: Bench):
    job = bench.job(SLEEP, scheduler="slurm")
    (job.folder / "scheduler.log").write_text("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=77.batch.\n")

    job.call("after", "137", SLURM_JOB_ID="77")

    assert job.outcome()["kind"] == "memory"
    assert "oom-kill event" in job.outcome()["message"]
