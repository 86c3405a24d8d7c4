"""Moments of calls, maps and executors that only a change of the client's own functions brings about."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import clusterfn
from clusterfn import (
    Cancelled,
    Executor,
    HostError,
    SubmitError,
    cluster,
)
from clusterfn.calls import attach as finding
from clusterfn.calls import history
from clusterfn.calls import submit as sending
from clusterfn.calls.group import state_of_group
from clusterfn.calls.job import entry_of
from clusterfn.config import config_file
from clusterfn.hosts import exit_flush, loop
from clusterfn.scheduler.slurm.submit import Slurm
from tests.e2e.test_executor import sent, until_there
from tests.e2e.test_map import square
from tests.waiting import until


@pytest.fixture
def closed(hosts, lab, tmp_path, monkeypatch):
    """The host slurm with a partition that starts nothing; gives the names in its queue."""
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=("slurm",))
    path.write_text(path.read_text().replace("cpu: short", "cpu: closed"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    before = hosts.jobs()

    def queue():
        return lab.slurm.run("squeue", "--noheader", "--format=%j").stdout.split()

    yield queue
    for name in queue():
        if name.rpartition(".")[2] in hosts.jobs() - before:
            lab.slurm.run("scancel", "--name", name)


@pytest.mark.lab
def test_a_group_that_is_stopped_while_it_is_submitted_leaves_nothing_in_the_queue(hosts, closed, gate, monkeypatch):
    line = f'sleep 2; "$@"; status=$?; touch "{gate}/submitted"; exit $status'  # a controller that takes its time
    elements = Slurm.elements

    def slowly(*args):
        return [(some, each._replace(argv=("sh", "-c", line, "sh", *each.argv))) for some, each in elements(*args)]

    monkeypatch.setattr(Slurm, "elements", slowly)
    group = cluster(host="slurm")(square).map(range(4), chunksize=1)
    until(lambda: group.id in hosts.jobs())  # what has not arrived is dropped, and never submitted
    group.stop()

    until((gate / "submitted").exists)
    until(lambda: not [name for name in closed() if group.id in name])
    assert group.wait(150) and group.states == ["CANCELLED"] * 4


@pytest.mark.lab
def test_a_group_whose_client_died_before_it_had_left_the_queue_leaves_it_when_somebody_attaches(closed, run_script):
    text = """
import json, os
from clusterfn import cluster
from clusterfn.calls.group_tracker import GroupTracker

def dies(tracker):
    print(json.dumps(group.id), flush=True)
    os._exit(0)

GroupTracker._stop_sending = lambda tracker: False  # all of it has arrived
GroupTracker.cancel_at_scheduler = dies
group = cluster(host="slurm")(abs).map(range(4), chunksize=1)
group.stop()
"""
    group_id = run_script(text)
    assert [name for name in closed() if group_id in name]

    group = clusterfn.attach(group_id)

    assert group.wait(150) and group.states == ["CANCELLED"] * 4, group
    until(lambda: not [name for name in closed() if group_id in name])


def test_shutdown_waits_for_the_others_where_nothing_can_be_heard_of_one(here, tmp_path):
    executor = Executor("here")
    lost, other = executor.map(pow, [1], [2]), executor.map(pow, [3], [2])
    state_of_group(executor._groups[0]).fail(HostError("it is gone"))

    executor.shutdown()

    assert executor._groups[1].done() and next(other) == 9
    with contextlib.suppress(HostError):
        assert next(lost) == 1


@pytest.mark.parametrize(
    ("raised", "error"), [(HostError("no way there"), HostError), (SystemExit("no way there"), SubmitError)]
)
def test_an_error_at_the_turn_of_a_call_is_that_calls_and_the_next_one_is_sent(
    here, tmp_path, monkeypatch, raised, error
):
    from clusterfn.calls import call

    send_needs, refused = call.send_needs, []

    def fails_once(prepared, job):
        if job.id in refused:
            raise raised
        return send_needs(prepared, job)

    with Executor("here", max_workers=1) as limited:
        first, second, third = (limited.submit(until_there(tmp_path / "go"), number) for number in range(3))
        refused.append(second.id)
        monkeypatch.setattr(call, "send_needs", fails_once)
        (tmp_path / "go").touch()
        with pytest.raises(error, match="no way there"):
            second.result(150)
        assert (first.result(150), third.result(150)) == (0, 2)


def test_where_no_thread_can_be_started_a_call_that_cannot_be_sent_without_one_says_so(here, tmp_path, monkeypatch):
    from clusterfn.calls import call

    run_in_thread, send_needs, asking = exit_flush.run_in_thread, call.send_needs, []

    def at_the_limit(work, name):
        work() if name == "clusterfn-limit" else run_in_thread(work, name)

    def asks_host(prepared, job):
        if job.id in asking:
            loop.result(loop.start(asyncio.sleep(0)), "asking the host", 150)
        return send_needs(prepared, job)

    with Executor("here", max_workers=1) as limited:
        first, second, third = (limited.submit(until_there(tmp_path / "go"), number) for number in range(3))
        asking.append(second.id)
        monkeypatch.setattr(exit_flush, "run_in_thread", at_the_limit)
        monkeypatch.setattr(call, "send_needs", asks_host)
        (tmp_path / "go").touch()
        with pytest.raises(SubmitError, match="no thread could be started to send it: this machine allows no more"):
            second.result(150)
        assert (first.result(150), third.result(150)) == (0, 2)


@pytest.fixture
def slow(monkeypatch):
    """The ids of jobs that take long to send, until they are taken out."""
    from clusterfn.calls import call

    send_needs, ids = call.send_needs, set()

    def send_slowly(prepared, job):
        until(lambda: job.id not in ids)
        return send_needs(prepared, job)

    monkeypatch.setattr(call, "send_needs", send_slowly)
    return ids


def test_a_call_never_overtakes_the_one_whose_value_it_takes(here, tmp_path, slow):
    with Executor("here", max_workers=2) as limited:
        blocking = [limited.submit(until_there(tmp_path / "go"), number) for number in range(2)]
        first = limited.submit(abs, -3)
        second = limited.submit(pow, first, 2)
        slow.add(first.id)
        (tmp_path / "go").touch()
        until(lambda: all(job.done() for job in blocking))
        with pytest.raises(clusterfn.ConfigError, match="has not been sent yet"):
            cluster(host="here")(abs).submit(first)
        slow.clear()
        assert second.result(150) == 9


def test_a_call_that_is_just_being_sent_can_be_stopped(here, tmp_path, slow):
    with Executor("here", max_workers=1) as limited:
        first = limited.submit(abs, -1)
        second = limited.submit(until_there(tmp_path / "go"), 2)
        third = limited.submit(abs, -3)
        slow.add(second.id)
        assert first.result(150) == 1
        stopping = ThreadPoolExecutor(1).submit(second.stop)
        slow.clear()
        stopping.result(150)
        assert isinstance(second.exception(150), Cancelled) and third.result(150) == 3


UNSENT_AT_EXIT = """
import time
import clusterfn
from clusterfn.calls import call
send_needs, count = call.send_needs, []
def send_slowly(*given):
    count.append(1)
    time.sleep(2 if len(count) == 3 else 0)  # the last one, while nothing else waits
    return send_needs(*given)
call.send_needs = send_slowly
executor = clusterfn.Executor("here", max_workers=1)
for number in range(3):
    executor.submit(abs, -number)
"""


def test_python_exits_when_the_last_call_is_sent(here):
    done = subprocess.run([sys.executable, "-c", UNSENT_AT_EXIT], capture_output=True, text=True, timeout=150)

    assert done.returncode == 0 and "2 calls are not sent yet (max_workers=1); Ctrl-C drops them" in done.stderr
    assert len(sent(here)) == 3
    for path in sent(here):
        assert clusterfn.attach(path.name).result(150) in (0, 1, 2)


WAITS_AT_EXIT = """
import atexit, concurrent.futures, time
jobs = []
def wait():
    print(*map(len, concurrent.futures.wait(jobs, 60)))
atexit.register(wait)
import clusterfn
jobs += [clusterfn.cluster(time.sleep).submit(0.5) for _ in range(12)]
"""


def test_an_exit_function_that_is_older_than_the_connection_sees_the_end_of_each_job(here):
    done = subprocess.run([sys.executable, "-c", WAITS_AT_EXIT], stdout=subprocess.PIPE, text=True, timeout=150)

    assert done.stdout == "12 0\n"


def test_a_job_is_found_by_its_id_even_if_it_is_still_on_its_way(here, monkeypatch):
    """Its folder comes after somebody has looked for it."""
    late, really_send, really_look = [], sending.submit_job, finding.find_folders
    monkeypatch.setattr(sending, "submit_job", lambda *given: late.append(given))

    def look(session, job_id):
        found = really_look(session, job_id)
        if late:
            really_send(*late.pop())
        return found

    monkeypatch.setattr(finding, "find_folders", look)
    job = cluster(lambda: 7).submit()

    assert clusterfn.attach(job.id).result(150) == 7


def test_a_job_that_was_sent_a_while_ago_and_is_not_there_is_reported(here, monkeypatch):
    monkeypatch.setattr(finding, "ON_ITS_WAY_S", 0.0)
    job_id = secrets.token_hex(8)
    history.remember(SimpleNamespace(id=job_id, host="here", name="f"), config_file.load().path)

    with pytest.raises(clusterfn.ConfigError, match="it is still being sent, or was rejected"):
        clusterfn.attach(job_id)


def test_a_job_that_is_looked_for_on_another_host_than_its_own_is_reported_with_where_it_is(tmp_path, monkeypatch):
    hosts = "".join(f"  {name}: {{scheduler: local, root: {tmp_path / name}}}\n" for name in ("here", "there"))
    (tmp_path / "clusterfn.yml").write_text(f"hosts:\n{hosts}")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    job_id = secrets.token_hex(8)
    history.remember(SimpleNamespace(id=job_id, host="here", name="f"), config_file.load().path)
    own = {**vars(time), "sleep": lambda _: pytest.fail("waits for what was sent elsewhere")}  # others may sleep
    monkeypatch.setattr(finding, "time", SimpleNamespace(**own))

    with pytest.raises(clusterfn.ConfigError) as refused:
        clusterfn.attach(job_id, "there")
    assert f"there is no job {job_id} on there: it was sent to here\n" in str(refused.value)
    assert "still being sent" not in str(refused.value)
    assert "next:  leave the host out, or use that host: here" in str(refused.value)


def test_a_callback_of_a_refused_job_may_ask_the_host(here):
    job = cluster(abs).submit(1)
    assert job.result() == 1
    heard = threading.Event()
    refused = cluster(abs).submit(1)
    entry_of(refused).fail(clusterfn.SubmitError("no"))
    refused.add_done_callback(lambda done: (done.logs(), heard.set()))
    assert heard.wait(150)
