"""Moments of calls, maps and executors that only a change of the client's own functions brings about."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import clusterfn
from clusterfn import Executor, HostError, cluster
from clusterfn.calls import attach as finding
from clusterfn.calls import history, sending
from clusterfn.calls.group import state_of_group
from clusterfn.calls.job import run_of
from clusterfn.config import config_file
from clusterfn.scheduler.slurm.submit import Slurm
from tests.e2e.inside import host_of
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
from clusterfn.calls.queue_place import QueuePlace

def dies(place):
    print(json.dumps(group.id), flush=True)
    os._exit(0)

QueuePlace.stop_sending = QueuePlace.await_submissions  # all of it has arrived
QueuePlace.cancel = dies
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


WAITS_AT_EXIT = """
import atexit, concurrent.futures, time
jobs = []
def wait():
    print(*map(len, concurrent.futures.wait(jobs, 140)))
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
    run_of(refused).fail(clusterfn.SubmitError("no"))
    refused.add_done_callback(lambda done: (done.logs(), heard.set()))
    assert heard.wait(150)


@pytest.mark.lab
def test_what_is_tried_again_comes_in_arrays_that_the_site_allows(hosts, monkeypatch):
    def array_of(x):
        import os

        if not os.path.exists(f"{os.environ['SLURM_SUBMIT_DIR']}/../second"):
            raise ValueError(os.environ["SLURM_ARRAY_TASK_COUNT"])
        return int(os.environ["SLURM_ARRAY_TASK_COUNT"])

    monkeypatch.setattr(host_of("slurm"), "limits", ["MaxArraySize = 3", "", ""])
    group = cluster(host="slurm")(array_of).map(range(4), chunksize=1)
    assert group.wait(150) and {str(error) for error in group.failed.values()} == {"2"}

    (hosts.root / "jobs" / "second").touch()

    assert group.retry_failed().results(150) == [2] * 4
