"""Which of many jobs are followed at a time, and what a controller is asked about them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn import ClusterfnError, Executor
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config import config_file
from clusterfn.config.spec import ResultPolicy
from clusterfn.hosts import host_state, loop
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.host_state import open_host
from clusterfn.hosts.rpc.requests import Followed
from tests.fakes.slurm_hosts import SlurmHosts
from tests.waiting import WAIT_S, until


def made(host: Any, digit: int = 0) -> tuple[Tracker, Job[Any]]:
    """A job of that host, and what follows it."""
    tracker = Tracker(host, f"7f3a00001111222{digit}", "train")
    return tracker, tracker.job()


def test_the_oldest_jobs_are_followed_and_those_that_begin_are_canceled_or_waited_for(
    hosts: Callable[..., SlurmHosts], monkeypatch
):
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 2)
    world = hosts(1)
    (name, node), *_ = world.nodes.items()
    jobs = [Executor(name).submit(abs, -1) for _ in range(8)]
    until(lambda: node.asked["still"] == 2 and node.asked["sbatch"] == 8)
    assert node.asked["follow"] == 2

    node.run_one(5)
    node.look()
    until(lambda: node.asked["still"] == 3)
    with contextlib.suppress(ClusterfnError):  # this host has no bridge that could say that it is canceled
        jobs[6].cancel()
    until(lambda: node.asked["follow"] == 4)
    with pytest.raises(TimeoutError):
        jobs[7].result(timeout=0.01)
    until(lambda: node.asked["follow"] == 5)
    node.end_all()  # of the five that are followed: two others come into their place
    until(lambda: [job.done() for job in jobs].count(True) == 5)
    assert [number for number, job in enumerate(jobs) if not job.done()] == [2, 3, 4]
    until(lambda: node.asked["follow"] == 7)
    node.end_all(later_too=True)

    assert concurrent.futures.wait([*jobs[:6], jobs[7]], 150).not_done == set()


MANY = sys.getrecursionlimit() // 2  # jobs that end each other from within would go deeper


def test_a_connection_that_ends_for_good_is_reported_to_jobs_that_are_not_followed_yet(
    hosts: Callable[..., SlurmHosts], monkeypatch
):
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 1)
    ((name, node),) = hosts(1).nodes.items()
    jobs = [Executor(name).submit(abs, -1) for _ in range(MANY)]
    until(lambda: node.asked["sbatch"] == MANY)

    open_host(config_file.load().resolve(name)[0]).connection.close()

    assert {type(job.exception(150)) for job in jobs} == {type(jobs[0].exception(150))}
    assert isinstance(jobs[-1].exception(0), ClusterfnError)


def test_what_a_job_prints_comes_once_to_a_display_that_began_before_the_turn_of_the_job(
    monkeypatch,
):
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 1)
    host = Mock(root="/root", settings=Mock(result_policy=ResultPolicy), follow_window=host_state.FollowWindow())
    files: list[Followed] = []
    host.connection.follow.side_effect = lambda some, *_, **__: files.extend(some) or Reply(lambda: None)
    tracker, _ = made(host)
    host.follow_window.enter("another")
    tracker.follow(in_turn=True)
    is_shown, shown = threading.Event(), Mock()
    loop.call(is_shown.wait, WAIT_S)  # the turn of the job comes after that

    tracker.source.watch_output(shown)
    is_shown.set()

    until(lambda: host.connection.follow.call_count == 2)
    for each in files:
        if each.path.endswith("/stdout"):
            each.on_data(b"epoch 1")
    shown.assert_called_once_with("stdout", b"epoch 1")


def test_a_refused_job_keeps_no_place_among_those_that_are_followed(hosts: Callable[..., SlurmHosts], monkeypatch):
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 1)
    ((name, node),) = hosts(1).nodes.items()
    host = open_host(config_file.load().resolve(name)[0])
    *trackers, late = [made(host, digit)[0] for digit in range(4)]
    trackers[0].follow(in_turn=True)

    trackers[1].run.close()  # refused, before its caller comes to the next line
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
