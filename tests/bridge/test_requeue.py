"""`requeue=`: a job that runs out of time, or whose machine restarts, waits again, and finds its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.bridge.host import Bench, Job
from tests.bridge.layout import warn_when
from tests.bridge.test_queue import kill
from tests.waiting import until

# Counts its attempts in checkpoint/, and ends by itself in attempt `enough`.
COUNTS = """
def f(enough):
    import os, time
    path = os.path.join(os.environ["CLUSTERFN_CHECKPOINT"], "attempts")
    count = 1 + (os.path.getsize(path) if os.path.exists(path) else 0)
    if count < enough:
        with open(path, "a") as file:
            file.write("x")
        time.sleep(600)
    return count
"""


def attempts(job: Job) -> list[dict[str, Any]]:
    """The outcomes so far."""
    folder = job.folder / "attempts"
    paths = [folder / str(number) / "outcome.json" for number in range(1, 9)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def await_end(job: Job) -> list[dict[str, Any]]:
    until(lambda: attempts(job) and attempts(job)[-1]["final"])
    return attempts(job)


def await_count(job: Job) -> None:
    """Wait until the function has counted its first attempt; the file exists before it holds the `x`."""
    path = job.folder / "checkpoint" / "attempts"
    until(lambda: path.exists() and path.stat().st_size)


def limited(bench: Bench, enough: int, times: int) -> Job:
    """A job that is warned once its function has counted."""
    warn_when(bench, "len(process_tree.read_file(self.job.path('checkpoint/attempts'))) == self.attempt.number")
    return bench.job(COUNTS, enough, requeue={"timeout": times}, warn_s=899.0, resources={"time_s": 900.0})


def test_a_job_that_runs_out_of_time_waits_again_and_ends_once(bench: Bench):
    job = limited(bench, 3, 3)

    assert job.start().wait(150) == 20, "its script leaves it to the queue"

    *before, last = await_end(job)
    assert [each["kind"] for each in before] == ["preempted"] * 2, job.log()
    assert (last["kind"], last["attempt"]) == ("returned", 3)
    assert [each["requeued"] for each in before] == [{"cause": "timeout", "count": n, "of": 3} for n in (1, 2)]
    assert last["earlier"] == [each["message"] for each in before]
    for number, message in enumerate(last["earlier"], 1):
        assert message.startswith(f"attempt {number} ran out of time: the function ended when it was warned")
        assert message.endswith(f"; requeued ({number} of 3)")
    events = (job.folder / "attempts" / "3" / "events.jsonl").read_text()
    assert '"reason": "attempt 3 of 4"' in events


def test_after_so_many_times_the_job_has_run_out_of_time(bench: Bench):
    job = limited(bench, 9, 1)

    job.start().wait(150)

    first, last = await_end(job)
    assert (first["kind"], last["kind"], last["final"]) == ("preempted", "time", True), job.log()
    assert "requeue= allows no more than 1 for this cause" in last["message"]


@pytest.mark.usefixtures("as_root")
def test_a_job_for_whose_ticket_there_is_no_room_ends_as_if_it_was_not_requeued(bench: Bench):
    bench.run("def f():\n    return 1\n")
    queue = next((bench.root / "machines").glob("*-*")) / "queue"
    queue.mkdir(exist_ok=True)
    job = limited(bench, 9, 1)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=1,mode=700", "none", str(queue)], check=True)
    try:
        assert job.start().wait(150) == 10, job.log()
    finally:
        subprocess.run(["umount", "-l", str(queue)], check=True)

    (only,) = attempts(job)
    assert (only["kind"], only["final"]) == ("time", True)
    assert "the job was not requeued: its ticket could not be written" in " ".join(only["notes"])
    assert sorted(path.name for path in job.folder.glob("*claim*")) == ["claim"]


def restart(bench: Bench, job: Job) -> None:
    """What a restart of the machine leaves: no processes, and files of another boot."""
    worker, supervisor = job.worker_pid(), job.supervisor_pid()
    assert job.script is not None
    kill([job.script.pid, supervisor, worker])
    job.script.wait()
    for path in (*bench.root.glob("machines/*/interrupted/*"), job.folder / "claim"):
        text = path.read_text()
        boot = json.loads(text)["boot"] if text.startswith("{") else text.partition(":")[0]
        path.write_text(text.replace(boot, "0" * 8 + boot[8:]))


@pytest.mark.fault("30")
def test_a_job_that_a_restart_interrupted_is_queued_once_and_begins_with_its_checkpoint(bench: Bench):
    job = bench.job(COUNTS, 2, requeue={"node": 1})
    job.start()
    await_count(job)
    restart(bench, job)

    bench.job("def f():\n    return 1\n").start().wait(150)  # the user's next call

    first, last = await_end(job)
    assert first["requeued"] == {"cause": "node", "count": 1, "of": 1}
    assert (last["kind"], last["attempt"]) == ("returned", 2), job.log()
    until(lambda: not list(bench.root.glob("machines/*/interrupted/*")))


def test_a_job_is_requeued_after_a_restart_only_as_often_as_it_may_be(bench: Bench):
    job = bench.job(COUNTS, 9, requeue={"node": 1})
    job.start()
    await_count(job)
    restart(bench, job)
    first = {"kind": "superseded", "final": False, "message": "", "requeued": {"cause": "node"}}
    (job.folder / "attempts" / "1" / "outcome.json").write_text(json.dumps(first))
    (job.folder / "attempts" / "2").mkdir()

    bench.job("def f():\n    return 1\n").start().wait(150)

    until(lambda: len(attempts(job)) == 3)
    assert attempts(job)[1]["kind"] == "node" and attempts(job)[1]["final"], job.log()
    assert "requeue= allows no more than 1 for this cause" in attempts(job)[1]["message"]
    assert (job.folder / "checkpoint" / "attempts").stat().st_size == 1, "it did not run again"


def test_a_machine_that_goes_down_in_order_leaves_the_job_in_the_queue(bench: Bench):
    job = bench.job(COUNTS, 2, requeue={"node": 1})
    process = job.start()
    await_count(job)

    os.kill(job.supervisor_pid(), signal.SIGTERM)

    assert process.wait(150) == 20
    assert attempts(job)[0]["requeued"]["cause"] == "node" and len(attempts(job)) == 1
    bench.job("def f():\n    return 1\n").start().wait(150)
    assert await_end(job)[-1]["kind"] == "returned", job.log()


def test_without_requeue_a_restart_ends_the_job_as_before(bench: Bench):
    job = bench.job(COUNTS, 2)
    job.start()
    await_count(job)
    restart(bench, job)

    bench.job("def f():\n    return 1\n").start().wait(150)
    told = job.call("conclude", stdin=json.dumps({"kind": "node", "message": "the host was restarted"}))

    assert '"kind": "node"' in told.stdout and attempts(job)[-1]["kind"] == "node"
