"""One client with many hosts and jobs: what it sends for each, which it follows, and what a controller is asked."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn import ClusterfnError, Executor, Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config import config_file
from clusterfn.config.spec import ResultPolicy
from clusterfn.display import at_once as module
from clusterfn.display import console
from clusterfn.display.at_once import at_once
from clusterfn.hosts import host_state, loop
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.host_state import open_host
from clusterfn.hosts.rpc.requests import Followed
from tests.fakes.growth import follow_fewer, grow
from tests.fakes.slurm_hosts import SlurmHosts
from tests.waiting import WAIT_S, until

REPOSITORY = Path(__file__).parents[3]
SENT = ("put", "chunk", "sbatch", "follow", "still")
MOST_KB = 22  # of memory for a job that waits
MOST_RESIDENT_KB = 30  # with what the fake hosts keep of it
# In a process of its own: the threads that other tests left would count as well.
MEASURES = """
import pathlib, sys
import pytest
from tests.fakes.growth import grow
from tests.fakes.slurm_hosts import slurm_hosts
with pytest.MonkeyPatch.context() as patch, slurm_hosts(patch, pathlib.Path(sys.argv[1]), 1, 0, "slurm") as world:
    print(grow(world, 100, measures_memory=True).kb)
"""


def test_a_job_takes_five_messages_and_one_at_its_end(hosts: Callable[[int], SlurmHosts]):
    world = hosts(2)

    grown = grow(world, 20, measures_memory=False)

    per_job = {what: world.asked[what] for what in SENT}
    assert per_job == dict.fromkeys(SENT, 22) | {"chunk": per_job["chunk"], "put": per_job["put"]}
    assert grown.messages <= 7
    assert grown.looks <= 2


def test_a_job_that_waits_takes_little_memory(tmp_path):
    argv = [sys.executable, "-c", MEASURES, str(tmp_path)]
    measured = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=150)

    assert measured.returncode == 0, measured.stderr
    assert 10 < float(measured.stdout) <= MOST_KB


def test_a_job_that_has_ended_takes_no_memory(hosts: Callable[..., SlurmHosts]):
    grow(hosts(1, first=900), 25, measures_memory=False)  # no other test has jobs there

    def left() -> list[Job[Any]]:
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, Job) and each.host == "node900"]

    until(lambda: len(left()) <= 2)  # the reader thread has the last answer at hand


def test_a_silent_job_that_no_look_finds_is_asked_about_at_once(hosts: Callable[[int], SlurmHosts]):
    node = hosts(1).nodes["node0"]
    job = Executor("node0").submit(abs, -1)
    until(lambda: node.silent_jobs)

    node.forget_all()
    node.fall_silent()

    until(lambda: node.asked["scontrol"] == 1)
    node.end_all()
    assert job.result(60) == 7


def test_a_job_of_a_machine_without_a_scheduler_takes_as_few_messages(hosts: Callable[..., SlurmHosts]):
    world = hosts(1, "bare")

    grown = grow(world, 20, measures_memory=False)

    assert world.asked["spawn"] == 21
    assert grown.messages <= 7


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scheduler", ["slurm", "bare"])
def test_twenty_thousand_jobs_on_one_host(hosts, table, monkeypatch, scheduler):
    # The same share of both is followed only when others end, which is a part of the cost of an end.
    with monkeypatch.context() as patch:
        follow_fewer(patch, 20)
        few = grow(hosts(1, scheduler), 1_000, measures_memory=False)
    began = time.monotonic()
    many = grow(hosts(1, scheduler), 20_000, measures_memory=False)
    minutes = (time.monotonic() - began) / 60

    table(f"1,000 jobs on one host ({scheduler}): {few}\n20,000 jobs: {many}")
    assert many.messages <= 8
    assert many.looks <= 2 + minutes
    assert many.resident_kb <= MOST_RESIDENT_KB
    # What grows with the jobs costs each of them twenty times as much; anything less may be the machine's doing.
    assert many.submit_ms <= 10 * few.submit_ms
    assert many.end_ms <= 10 * few.end_ms


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_a_hundred_hosts_and_a_hundred_thousand_jobs(hosts: Callable[[int], SlurmHosts], table: Callable[[str], None]):
    few = grow(hosts(4), 1_000, measures_memory=False)
    began = time.monotonic()
    many = grow(hosts(100), 100_000, measures_memory=False)
    minutes = (time.monotonic() - began) / 60

    table(f"1,000 jobs on 4 hosts: {few}\n100,000 jobs on 100 hosts, in {minutes:.0f} minutes: {many}")
    assert many.messages <= 8
    assert many.looks <= 2 + minutes  # of each host: requests to look, which the agent repeats by itself
    assert many.resident_kb <= MOST_RESIDENT_KB
    again = grow(hosts(4), 1_000, measures_memory=False)  # the machine may have become slower
    assert many.submit_ms <= 3 * max(few.submit_ms, again.submit_ms)
    assert many.end_ms <= 3 * max(few.end_ms, again.end_ms)


def test_several_are_done_at_the_same_time_and_reported_in_their_order():
    all_there = threading.Barrier(module.MOST)  # none gets through before so many have come

    def work(number: int) -> int:
        all_there.wait(150)
        return -number

    numbers = list(range(3 * module.MOST))
    assert [answer.result() for answer in at_once(numbers, work, "counting")] == [-each for each in numbers]


def test_a_failure_hides_no_other():
    answers = list(at_once([1, 0, 2], lambda number: 2 // number, "dividing"))

    assert (answers[0].result(), answers[2].result()) == (2, 1)
    assert isinstance(answers[1].exception(), ZeroDivisionError)


def test_one_is_done_in_the_callers_thread_and_nothing_for_none():
    assert [each.result() for each in at_once([1], lambda _: threading.get_ident(), "")] == [threading.get_ident()]
    assert list(at_once([], str, "")) == []


def test_it_says_how_many_are_done_while_the_next_takes_long(monkeypatch):
    monkeypatch.setattr(module, "TELL_EVERY_S", 0.01)
    lines: list[str] = []
    told = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        told.set()

    monkeypatch.setattr(console, "tell", tell)

    answers = list(at_once([False, True], lambda waits: told.wait(150) if waits else True, "cancelling jobs"))

    assert [each.result() for each in answers] == [True, True]
    assert lines[0] in ("cancelling jobs: 0 of 2 done", "cancelling jobs: 1 of 2 done")


def test_what_has_not_begun_never_does_once_the_caller_has_gone():
    begun: list[int] = []
    may_end = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number:
            may_end.wait(150)

    answers = at_once(range(100), work, "counting")
    next(answers)
    del answers  # as at Ctrl-C
    may_end.set()

    until(lambda: all(each.name != "clusterfn-at-once" for each in threading.enumerate()))
    assert len(begun) <= module.MOST + 1


def made(host: Any, digit: int = 0) -> tuple[Tracker, Job[Any]]:
    """A job of that host, and what follows it."""
    tracker = Tracker(host, f"7f3a00001111222{digit}", "train")
    return tracker, Job(tracker.run, tracker.source)


def test_the_oldest_jobs_are_followed_and_those_that_begin_are_canceled_or_waited_for(hosts, monkeypatch):
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 2)
    world = hosts(1)
    (name, node), *_ = world.nodes.items()
    jobs = [Executor(name).submit(abs, -1) for _ in range(8)]
    until(lambda: node.asked["still"] == 2 and node.asked["sbatch"] == 8)
    assert node.asked["follow"] == 2

    node.run_one(5)
    # A look may come before the client has heard the number of that job: another one follows, as on any host.
    until(lambda: node.look() or node.asked["still"] == 3)
    with contextlib.suppress(ClusterfnError):  # this host has no bridge that could say that it is canceled
        jobs[6].cancel()
    until(lambda: node.asked["follow"] == 4)
    with pytest.raises(TimeoutError):
        jobs[7].result(timeout=0.01)
    until(lambda: node.asked["still"] == 5)
    node.end_all()  # of the five that are followed: two others come into their place
    until(lambda: [job.done() for job in jobs].count(True) == 5)
    assert [number for number, job in enumerate(jobs) if not job.done()] == [2, 3, 4]
    until(lambda: node.asked["follow"] == 7)
    node.end_all(later_too=True)

    assert concurrent.futures.wait([*jobs[:6], jobs[7]], 150).not_done == set()


MANY = sys.getrecursionlimit() // 2  # jobs that end each other from within would go deeper


def test_a_connection_that_ends_for_good_is_reported_to_jobs_that_are_not_followed_yet(hosts, monkeypatch):
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 1)
    ((name, node),) = hosts(1).nodes.items()
    jobs = [Executor(name).submit(abs, -1) for _ in range(MANY)]
    until(lambda: node.asked["sbatch"] == MANY)

    open_host(config_file.load().resolve(name)[0]).connection.close()

    assert {type(job.exception(150)) for job in jobs} == {type(jobs[0].exception(150))}
    assert isinstance(jobs[-1].exception(0), ClusterfnError)


def test_what_a_job_prints_comes_once_to_a_display_that_began_before_the_turn_of_the_job(monkeypatch):
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 1)
    host = Mock(root="/root", settings=Mock(result_policy=ResultPolicy), follow_window=host_state.FollowWindow())
    asked: list[list[Followed]] = []
    host.connection.follow.side_effect = lambda files, *_, **__: asked.append(list(files)) or Reply(lambda: None)
    tracker, _ = made(host)
    host.follow_window.enter("another")
    tracker.follow(in_turn=True)
    is_shown, shown = threading.Event(), Mock()
    loop.call(is_shown.wait, WAIT_S)  # the turn of the job comes after that

    tracker.source.watch_output(shown)
    is_shown.set()

    until(lambda: len(asked) == 2)  # which a Mock counts before it does it
    for each in [each for files in asked for each in files if each.path.endswith("/stdout")]:
        each.on_data(b"epoch 1")
    shown.assert_called_once_with("stdout", b"epoch 1")


def test_a_refused_job_keeps_no_place_among_those_that_are_followed(hosts: Callable[..., SlurmHosts], monkeypatch):
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 1)
    ((name, node),) = hosts(1).nodes.items()
    host = open_host(config_file.load().resolve(name)[0])
    first, *trackers, late = [made(host, digit)[0] for digit in range(5)]
    first.run.close()  # refused, before its caller comes to the next line
    first.follow(in_turn=True)
    trackers[0].follow(in_turn=True)
    until(lambda: trackers[0].source.awaited is not None)

    trackers[1].run.close()  # refused, too
    trackers[1].follow(in_turn=True)
    trackers[2].follow(in_turn=True)
    assert trackers[2].source.awaited is None
    trackers[0].run.close()

    until(lambda: trackers[2].source.awaited is not None)
    late.run.hurry()  # somebody waits for it before it is sent
    late.follow(in_turn=True)
    assert late.source.awaited is not None
    for tracker in (trackers[2], late):
        tracker.run.close()
