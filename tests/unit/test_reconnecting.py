"""How long a client waits before it connects again, and what whoever waits for a job is told meanwhile."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from clusterfn import live
from clusterfn.errors import Unreachable
from clusterfn.host import HostConnection, State
from clusterfn.hostlink import link, trying
from clusterfn.job import RUNNING, Job
from clusterfn.spec import Host
from clusterfn.tracker import _trouble
from tests.contract.conftest import until
from tests.fakes.transport import FakeTransport, agent

HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3")
LOST = "no connection to lab8 since 14:03:07, trying again: the host no longer answered"


def test_the_first_attempt_is_made_at_once_and_each_pause_is_twice_as_long_up_to_half_a_minute() -> None:
    longest = [max(trying.pause_s(waits) for _ in range(300)) for waits in range(12)]
    shortest = [min(trying.pause_s(waits) for _ in range(300)) for waits in range(12)]

    assert longest[0] == 0.0
    for waits, wanted in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, *6 * [30.0]], 1):
        assert wanted * 0.9 < longest[waits] <= wanted
        assert wanted * 0.5 <= shortest[waits] < wanted * 0.6


def test_two_clients_that_lost_their_host_together_do_not_come_back_together() -> None:
    assert len({trying.pause_s(5) for _ in range(100)}) > 90


def test_the_pauses_grow_while_a_host_is_away_and_begin_anew_once_it_was_back(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(trying, "pause_s", lambda waited: waits.append(waited) or 0.001)
    monkeypatch.setattr(link, "SOON_S", 0.0)  # a stream that ends is not taken for one that broke at once
    transport = FakeTransport(agent(lambda request, body: [({"end": True, "ok": True}, b"")]))
    connection = HostConnection(HOST, transport)
    for _ in range(2):
        transport.error = Unreachable("gone", host="lab8")
        transport.drop()
        before = len(waits)
        reply = connection.ping()
        until(lambda: len(waits) >= before + 4)
        transport.error = None
        reply.result(10)
    connection.close()

    again = waits.index(0, 1)
    assert waits[:again] == list(range(again)) and waits[again:] == list(range(len(waits) - again)) and again >= 4


def test_what_is_lost_and_since_when_is_said_in_words() -> None:
    words = _trouble("lab8", State("reconnecting", 0.0, "the host no longer answered"))

    assert re.fullmatch(r"no connection to lab8 since \d\d:\d\d:\d\d, trying again: the host no longer answered", words)
    needs_you = "connection to lab8 needs you: clusterfn login lab8; your jobs go on"
    assert _trouble("lab8", State("waiting", 0.0, needs_you)) == needs_you
    assert _trouble("lab8", State("connected", 0.0)) == _trouble("lab8", State("closed", 0.0, "gone")) == ""


def test_a_job_says_so_and_afterwards_what_it_said_before() -> None:
    job = Job[int]("7f3a" * 4, "train", "lab8", "/jobs/7f3a", None)  # type: ignore[arg-type]
    heard: list[tuple[str, Any]] = []
    job.listen(lambda kind, what: heard.append((kind, what)))
    job.on_state(RUNNING, "n1")
    job.on_connection(LOST)
    job.on_connection(LOST)
    assert (job.state, job.status) == (RUNNING, f"RUNNING ({LOST})")
    job.on_connection("")

    assert job.status == "RUNNING (n1)"
    assert heard == [("state", RUNNING), ("connection", LOST), ("connection", "")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Tell = Callable[[Job[int]], None]


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *tells: Tell) -> str:
    """What stands on `stream` of a job that is told each of these, and then returns."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", out)
    job = Job[int]("7f3a" * 4, "train", "lab8", "/jobs/7f3a", None)  # type: ignore[arg-type]
    waiting = threading.Thread(target=lambda: live.result(job, "train on lab8"))
    waiting.start()
    until(lambda: job._listeners)
    for tell in tells:
        tell(job)
    job._finish(lambda: job.set_result(1))
    waiting.join(10)
    return stream.getvalue().partition("\n")[2]


def test_a_log_says_once_that_the_connection_is_lost_and_once_that_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(
        monkeypatch, io.StringIO(),
        lambda job: job.on_connection(LOST),
        lambda job: job.on_connection(LOST.replace("the host no longer answered", "lab8:22 refused the connection")),
        lambda job: job.on_connection(""),
    )  # fmt: skip

    assert text == f"clusterfn: 7f3a {LOST}\nclusterfn: 7f3a the connection to lab8 is back\n"


def test_a_terminal_shows_it_below_the_output_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = shown(
        monkeypatch, Terminal(),
        lambda job: job.on_state(RUNNING, ""),
        lambda job: job.tell("stderr", b"epoch 1: half"),
        lambda job: job.on_connection(LOST),
        lambda job: job.on_connection(""),
        lambda job: job.tell("stderr", b" done\n"),
    )  # fmt: skip

    line = f"7f3a running 00:00 ({LOST})"[:59]
    assert text.endswith(f"\r\x1b[Kepoch 1: half\n\r\x1b[K{line}\r\x1b[K done\n")
