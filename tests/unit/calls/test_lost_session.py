"""What a session's dead server leaves to its calls: few questions, and none after their end."""

from __future__ import annotations

import concurrent.futures
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterfn import Session, WorkerLost
from clusterfn.calls import session_stream
from clusterfn.calls.session_job import SessionJob
from clusterfn.hosts.connection import HostConnection, Reply
from tests.processes import parent_of
from tests.unit.calls.test_streamed_calls import runner, speak, talk_around, through_the_socket
from tests.waiting import until


def test_a_session_that_dies_asks_its_host_for_all_of_its_calls_together(
    sent: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[int] = []
    have = HostConnection.have

    def noted(connection: HostConnection, paths: Sequence[str], **more: Any) -> Any:
        asked.append(len([path for path in paths if "/calls/" in path]))
        return have(connection, paths, **more)

    session = Session()
    through_the_socket(session, sent)
    server = parent_of(session.call(runner))
    calls = [session.submit(talk_around, str(tmp_path / "gate")) for _ in range(20)]
    until(lambda: calls[0].state == "RUNNING")
    monkeypatch.setattr(HostConnection, "have", noted)
    os.kill(server, signal.SIGKILL)

    assert all(isinstance(call.exception(150), WorkerLost) for call in calls)
    assert [each for each in asked if each] == [20, 20], "which have ended, and which of the others have begun"
    session.shutdown()


def test_calls_that_have_ended_without_an_outcome_are_not_followed_any_more(
    sent: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session_stream, "MOST_BYTES", -1)  # the calls go as files, which are followed
    followed: list[Reply[Any]] = []

    follow = HostConnection.follow

    def noted(connection: HostConnection, files: Any, until: str = "", *rest: Any, **more: Any) -> Any:
        reply = follow(connection, files, until, *rest, **more)
        if "/calls/" in until:
            followed.append(reply)
        return reply

    monkeypatch.setattr(HostConnection, "follow", noted)
    session = Session()
    server = parent_of(session.call(runner))
    running, waiting = session.submit(talk_around, str(tmp_path / "gate")), session.submit(speak, "never")
    withdrawn = session.submit(speak, "never")
    until(lambda: running.state == "RUNNING")
    assert withdrawn.cancel()
    os.kill(server, signal.SIGKILL)

    assert all(isinstance(call.exception(150), WorkerLost) for call in (running, waiting))
    assert len(followed) >= 4, "four calls"
    until(lambda: all(reply.done() for reply in followed))
    session.shutdown()


def test_a_session_whose_job_was_withdrawn_says_so_instead_of_raising_that():
    holding = SessionJob.__new__(SessionJob)
    withdrawn: Any = concurrent.futures.Future()
    withdrawn.cancel()
    holding.job = withdrawn

    assert holding.why_over == "it was withdrawn before it started"
