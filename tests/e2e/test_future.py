"""A job is a concurrent.futures.Future: giving up waiting never touches it; stopping it ends all of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import time

import pytest

from clusterfn import Cancelled, ClusterfnError, ConfigError, Executor, JobGroup, Session, attach, cluster
from tests.e2e.conftest import ON_BARE, ON_SLURM, give_to
from tests.waiting import until

pytestmark = pytest.mark.lab


def until_told(gate, value="value"):
    """A function that writes `began`, prints a line, and returns once `go` is there."""
    folder = str(gate)

    def wait():
        import time

        os.close(os.open(os.path.join(folder, "began"), os.O_WRONLY | os.O_CREAT))
        print("began", flush=True)
        deadline = time.monotonic() + 200  # longer than any test waits for what must end it before
        while not os.path.exists(os.path.join(folder, "go")):
            if time.monotonic() > deadline:
                raise TimeoutError("nobody said go")
            time.sleep(0.02)
        return value

    return wait


def after(seconds, value):

    time.sleep(seconds)
    return value


after.__module__ = "__main__"


async def impatient(job):
    await asyncio.wait_for(job, 0.3)


def running(job):
    return until(lambda: job.state == "RUNNING")


@ON_BARE
def test_a_timeout_leaves_the_job_alone(hosts, gate, host):
    job = cluster(host=host)(until_told(gate)).submit()

    with pytest.raises(concurrent.futures.TimeoutError, match=f"{job.id} on {host} has not ended within 0.1 s"):
        job.result(timeout=0.1)

    (gate / "go").touch()
    assert job.result(150) == "value"


def test_a_job_that_waits_for_a_gpu_can_be_withdrawn_and_never_runs(hosts, gate, gpubox_reset):
    first, second = gate / "first", gate / "second"
    for folder in (first, second):
        folder.mkdir()
        give_to("cfbash", folder)
    holder = cluster(host="tensor01", gpus=8)(until_told(first)).submit()
    running(holder)
    waiting = cluster(host="tensor01", gpus=1)(until_told(second)).submit()
    until(lambda: "8 of 8 GPUs held by you (8)" in waiting.status)
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(impatient(waiting))
    assert waiting.state == "PENDING"

    assert waiting.cancel() is True

    assert waiting.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(150)
    (first / "go").touch()
    assert holder.result(150) == "value"
    probe = cluster(host="tensor01", gpus=8)(after)
    assert probe(0, "all cards are free again") == "all cards are free again"
    assert not (second / "began").exists()


def call_of_an_actor(wait, host, stack):
    class Waiter:
        def work(self):
            return wait()

    return stack.enter_context(Session(host)).actor(Waiter).work.submit()


# What a user sends, and what he has then.
SENT = {
    "job": lambda wait, host, stack: cluster(host=host)(wait).submit(),
    "attached job": lambda wait, host, stack: attach(cluster(host=host)(wait).submit().id),
    "group": lambda wait, host, stack: cluster(host=host)(lambda _: wait()).map([0]),
    "attached group": lambda wait, host, stack: attach(cluster(host=host)(lambda _: wait()).map([0]).id),
    "call of a session": lambda wait, host, stack: stack.enter_context(Session(host)).submit(wait),
    "call of an actor": call_of_an_actor,
}


def result_of(sent):
    return sent.result(0, 150) if isinstance(sent, JobGroup) else sent.result(150)


@pytest.mark.parametrize(("kind", "host"), [*((kind, "tensor01") for kind in SENT), ("job", "slurm")])
def test_cancel_ends_what_runs_whatever_it_is(hosts, gate, kind, host):
    with contextlib.ExitStack() as stack:
        sent = SENT[kind](until_told(gate), host, stack)
        until(lambda: (gate / "began").exists() and sent.state == "RUNNING")

        assert sent.cancel() is True

        with pytest.raises(Cancelled):
            result_of(sent)
        assert sent.state == "CANCELLED"
        assert sent.cancel() is True, "it is cancelled"


@ON_BARE
def test_cancel_of_what_has_ended_by_itself_says_no(hosts, host):
    job, group = cluster(host=host)(abs).submit(-1), cluster(host=host)(abs).map([-1])

    assert (job.result(150), *group) == (1, 1)
    assert not job.cancel() and not group.cancel() and job.state == group.state == "RETURNED"


def test_a_running_future_of_an_executor_keeps_running_as_in_the_standard_library_until_it_is_stopped(
    hosts, gate, capfd
):
    with Executor("tensor01") as executor:
        future = executor.submit(until_told(gate))
        until(lambda: (gate / "began").exists() and future.running())

        assert future.cancel() is False and not future.cancelled()
        assert capfd.readouterr().err.endswith("as in concurrent.futures: stop() ends it\n")
        assert future.running()
        future.stop()
        with pytest.raises(Cancelled):
            future.result(150)


@pytest.mark.parametrize(("as_future", "ends"), [(asyncio.ensure_future, False), (asyncio.wrap_future, True)])
def test_asyncio_ends_a_job_if_the_program_has_wrapped_it_as_its_own_future(hosts, gate, as_future, ends):
    job = cluster(host="tensor01")(until_told(gate)).submit()
    running(job)

    async def impatient_of():
        await asyncio.wait_for(as_future(job), 0.3)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(impatient_of())

    if not ends:
        (gate / "go").touch()
    with pytest.raises(Cancelled) if ends else contextlib.nullcontext():
        assert job.result(150) == "value"


@ON_SLURM
def test_what_a_job_tells_of_itself(hosts, host, tmp_path):
    @cluster(host=host, name="told")
    def tell():
        import pathlib
        import sys

        print("to stdout")
        print("to stderr", file=sys.stderr)
        pathlib.Path("plots").mkdir()
        pathlib.Path("plots/a.txt").write_text("aaa")
        pathlib.Path("b.bin").write_bytes(bytes(1000))
        block = bytearray(60 << 20)
        return sum(1 for n in range(300_000) if n % 7 == block[n])

    job = tell.submit()
    job.result(150)

    assert (job.name, job.host, job.state) == ("told", host, "RETURNED")
    assert repr(job) == f"<Job {job.id} told on {host}: RETURNED>"
    assert job.logs() == "to stdout\n"
    assert job.logs("stderr") == "to stderr\n"
    with pytest.raises(ValueError, match="'sterr': a job has stdout, stderr, scheduler"):
        job.logs("sterr")
    assert sorted((file.name, file.size) for file in job.files) == [("b.bin", 1000), ("plots/a.txt", 3)]
    assert job.usage["wall_s"] > 0
    assert job.usage["cpu_s"] > 0
    assert job.usage["peak_memory_bytes"] > 60 << 20
    fetched = job.download("plots/*", to=tmp_path / "got")
    assert fetched == [tmp_path / "got" / "plots" / "a.txt"]
    assert fetched[0].read_text() == "aaa"
    with pytest.raises(ClusterfnError, match=r"no-such[\s\S]*b.bin"):
        job.download("no-such*")


ATTACHING = """
import json, sys
from dataclasses import dataclass
import clusterfn

@dataclass
class Point:
    x: int
    tag: str = "here"

@clusterfn.cluster(host="tensor01")
def make(x):
    print("made there")
    return Point(x)

if sys.argv[1] == "send":
    print(json.dumps(make.submit(7).id))
else:
    job = clusterfn.attach(sys.argv[1])
    point = job.result(150)
    print(json.dumps([isinstance(point, Point), type(point) is Point, point.x, job.id, job.name, job.logs()]))
"""


def test_another_process_finds_the_job_by_its_id_or_the_beginning_of_it(hosts, run_script):
    job_id = run_script(ATTACHING, "send")

    expected = [True, True, 7, job_id, "make", "made there\n"]
    assert run_script(ATTACHING, job_id) == expected
    assert run_script(ATTACHING, job_id[:6]) == expected


def test_an_id_is_taken_as_it_was_copied(here):
    job = cluster(lambda: 7).submit()
    job.result(150)

    assert attach(f" #{job.id.upper()}\n").result(150) == 7
    with pytest.raises(ConfigError, match="7 is not the id of a job"):
        attach(7)
    with pytest.raises(ConfigError, match=f"use its id, '{job.id}'"):
        attach(job)  # type: ignore[arg-type]


def test_what_is_being_sent_is_no_job_yet(here):
    job = cluster(lambda: 7).submit()
    job.result(150)
    (here / "jobs" / f"{job.id}.part-1-2").mkdir()

    assert attach(job.id).result(150) == 7


def test_how_far_a_job_is_is_known_when_attach_returns(hosts, gate):
    function = cluster(host="tensor01")(until_told(gate))
    runs, ended = function.submit(), cluster(host="tensor01")(lambda: 7).submit()
    running(runs)
    ended.result(150)

    again = attach(ended.id, "tensor01")
    assert again.done() and again.state == "RETURNED" and again.usage["wall_s"] > 0
    assert attach(runs.id, "tensor01").state == "RUNNING"
    runs.stop()


@pytest.mark.lab
def test_a_job_that_a_cluster_on_the_same_home_shows_is_taken_from_the_server_it_was_sent_to(hosts):
    job = cluster(host="tensor01")(abs).submit(-1)
    assert job.result(150) == 1

    assert attach(job.id, host="slurm").host == "tensor01"
