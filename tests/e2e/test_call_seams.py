"""Moments of calls, maps and executors that only a change of the client's own functions brings about."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import clusterfn
from clusterfn import (
    Executor,
    HostError,
    cluster,
)
from clusterfn.calls import attach as finding
from clusterfn.calls import history
from clusterfn.calls import submit as sending
from clusterfn.calls.group import state_of_group
from clusterfn.calls.job import entry_of
from clusterfn.cli import top
from clusterfn.config import config_file
from clusterfn.hosts import connected_host, connection
from clusterfn.scheduler.slurm.submit import Slurm
from tests.e2e.conftest import ON_BARE
from tests.e2e.inside import session_of
from tests.e2e.test_administrators import apart, script
from tests.e2e.test_map import began, counted_until_told, square
from tests.e2e.test_requeue import counting
from tests.waiting import until


@pytest.mark.lab
def test_a_damaged_bridge_costs_no_item(hosts, gate, monkeypatch):
    def removes_late(folder: str) -> list[str]:
        shell, option, script, *words = remove(folder)
        return [shell, option, f"sleep 1; {script}; echo >'{gate}/removed'", *words]

    # The command that removes the damaged one is slow to start, as on a busy machine.
    remove = connected_host.removal_command
    monkeypatch.setattr(connected_host, "removal_command", removes_late)
    group = cluster(host="tensor01")(counted_until_told(gate, (0,))).map(range(5), max_parallel=1)
    until(lambda: began(gate, 0))

    worker = hosts.root / "bridge" / Path(state_of_group(group).backend.job.bridge).name / "worker.py"
    worker.unlink()
    (gate / "go").touch()

    assert group.results(150) == list(range(5))
    assert [len(began(gate, x)) for x in range(5)] == [1] * 5
    until((gate / "removed").exists)
    assert worker.exists()


DIES = """
import json, os
from clusterfn import cluster
from clusterfn.calls import conclusion

CUT = (  # who writes more than so many bytes dies
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (140000,) * 2);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)

@cluster(host="tensor01")
def wait(x):
    import time
    time.sleep(600 if x else 0)
    return x

def dies(session, group, folder, bridge, verdict):
    print(json.dumps(group.id), flush=True)
    if {half}:
        python = session.connection.facts.python
        asked = json.dumps({{**verdict.as_dict(), "message": "stopped " * 400}}).encode()
        argv = [python, "-c", CUT, python, "-I", "-S", bridge + "/supervise.py", "bury", folder]
        session.connection.run(argv, stdin=asked).result(150)
    os._exit(0)

conclusion.fail_unfinished_items = dies
group = wait.map(range(60), max_parallel=2, chunksize=1)
next(iter(group))
group.stop()
"""


@pytest.mark.lab
@pytest.mark.parametrize("half", [True, pytest.param(False, marks=pytest.mark.long)])
def test_where_a_client_died_while_it_stopped_a_group_the_next_one_ends_the_telling(hosts, run_script, capfd, half):
    group_id = run_script(DIES.format(half=half))
    journals = (hosts.root / "jobs" / group_id).glob("elements/*/attempts/1/journal.jsonl")
    told = sum('"stopped stopped' in line for path in journals for line in path.read_text().splitlines())
    assert 5 < told < 50 if half else told == 0

    group = clusterfn.attach(group_id)

    assert group.wait(150) and group.states == ["RETURNED"] + ["CANCELLED"] * 59, group
    assert "more elements" not in capfd.readouterr().err
    # The host publishes the outcome of the group a moment after the line of its last item.
    until(lambda: next(job.state for job in clusterfn.jobs("tensor01") if job.id == group_id) == "CANCELLED")


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


def test_a_terminal_that_is_stopped_brings_no_further_look(here, monkeypatch):
    came: list[bytes] = []
    real = connection.HostConnection.converse

    def converse(self, argv, first, on_data, *rest):
        return real(self, argv, first, lambda data: (came.append(data), on_data(data)), *rest)

    monkeypatch.setattr(connection.HostConnection, "converse", converse)
    looks = top.looks(session_of("here"))
    next(looks)
    time.sleep(3)  # the host may look each 2 s
    assert len(came) == 1

    next(looks)

    assert len(came) == 2
    looks.close()


# Warned soon after it has begun, but not while a slow machine still loads it.
SOON = {"time": "600s", "warn_before": "595s"}


@pytest.mark.lab
@ON_BARE
def test_a_job_that_runs_out_of_time_begins_again_as_one_job(hosts, host):
    job = cluster(host=host, requeue={"timeout": 2}, **SOON)(counting).submit(2)
    seen = []
    entry_of(job).listen(lambda kind, what: seen.append(job.status) if kind == "state" else None)

    assert job.result(400) == 2

    assert len(job.notes) == 1 and job.notes[0].endswith("requeued (1 of 2)"), job.notes
    assert any(status.startswith("PENDING (attempt 1 ran out of time") for status in seen), seen
    assert any("RUNNING (attempt 2 of 3" in status for status in seen), seen
    again = clusterfn.attach(job.id)
    assert again.result(150) == 2 and again.notes == job.notes
    listed = {each.id: each for each in clusterfn.jobs(host)}
    assert listed[job.id].state == "RETURNED"


# What a user can do who has changed his own client: it sends what it likes, and the machine's bridge still limits it.
CHANGED_CLIENT = """
import json
from clusterfn import cluster
from clusterfn.hosts.host_capacity import HostCapacity

HostCapacity.rules = None

def spin():
    import time
    time.sleep(1000)

if __name__ == "__main__":
    try:
        cluster(time="1h")(spin)()
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.lab
def test_the_bridge_limits_the_time_of_a_job_whose_client_was_changed(here, tmp_path):
    ran = apart("limits:\n  time: 2s\n", here, tmp_path, sys.executable, script(CHANGED_CLIENT, tmp_path))

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])[0] == "TimeLimit"
