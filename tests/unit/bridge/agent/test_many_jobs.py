"""What an agent does for a client that follows many jobs: how often it looks, and what the end of one costs.

The clock is the test's own, so that an idle hour passes at once. A listing of a folder takes 20 µs of it, about as much
as a real one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fcntl")

from clusterfn.bridge.agent import file_watcher, growing_files, handler, server
from clusterfn.bridge.agent.frames import pack
from clusterfn.bridge.agent.server import Agent
from tests.fakes.agent_client import Client
from tests.waiting import until

LISTING_S = 20e-6


def still(number: int, **asked: Any) -> dict[str, Any]:
    """A request that asks when a file has stopped changing."""
    return {"id": number, "do": "follow", "still": asked}


class Busy:
    """An agent without inotify, as for files that other machines write.

    Attributes:
        cpu_s: What its looks have taken.
        polls: How many there were.
    """

    def __init__(self, client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cpu_s, self.polls = 1000.0, 0.0, 0
        self.client, self.agent, self.folder = client, client.agent, folder
        real = file_watcher.names_in

        def names_in(folder: str, listed: dict[str, Any]) -> Any:
            if folder not in listed:
                self.cpu_s += LISTING_S
                self.now += LISTING_S
            return real(folder, listed)

        clock = SimpleNamespace(monotonic=lambda: self.now, process_time=lambda: self.cpu_s)
        monkeypatch.setattr(file_watcher, "time", clock)
        monkeypatch.setattr(file_watcher, "names_in", names_in)
        monkeypatch.setattr(file_watcher, "new_inotify", lambda: None)

    def follow(self, jobs: int, first: int = 2) -> None:
        for number in range(first, first + jobs):
            attempt = self.folder / "jobs" / str(number) / "attempts" / "1"
            attempt.parents[1].mkdir(parents=True, exist_ok=True)
            files = {"files": [[str(attempt / "events.jsonl"), 0]], "until": str(attempt / "outcome.json")}
            self.agent.dispatch({"id": number, "do": "follow", **files}, b"")

    def attempt(self, job: int) -> Path:
        """Make the folder of its first attempt."""
        folder = self.folder / "jobs" / str(job) / "attempts" / "1"
        folder.mkdir(parents=True)
        return folder

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.agent.watcher.open and self.agent.watcher.next_poll < until:
            self.now = max(self.now, self.agent.watcher.next_poll)
            self.polls += 1
            self.agent.watcher.poll(self.now)
        self.now = until

    def said(self) -> list[dict[str, Any]]:
        # A flush gives up after some milliseconds, and a busy machine may spend these on another process.
        while self.agent.out.pending():
            self.agent.out.flush()
        return [header for header, _ in self.client.inbox.feed(os.read(self.client.answers, 2**16))]


@pytest.fixture
def busy(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Busy:
    return Busy(client, tmp_path, monkeypatch)


def test_an_idle_hour_takes_a_second_of_the_processor_and_an_end_is_seen_within_two(busy: Busy):
    busy.follow(1)
    busy.pass_time(3600.0)
    looks, used = busy.polls, busy.cpu_s

    (busy.attempt(2) / "outcome.json").write_bytes(b"{}")
    busy.pass_time(2.0 + 0.1)

    assert looks < 3600 and used < 1.0
    assert [header.get("end") for header in busy.said()] == [True]


def test_what_a_job_prints_is_looked_for_often_again_once_it_prints(busy: Busy):
    busy.follow(1)
    attempt = busy.attempt(2)
    busy.pass_time(600.0)
    (attempt / "events.jsonl").write_bytes(b"{}\n")
    busy.pass_time(2.1)
    assert [header.get("offset") for header in busy.said()] == [0]
    before = busy.polls

    busy.pass_time(1.0)

    assert busy.polls - before >= 4


def test_hundreds_of_jobs_take_their_share_of_a_core_and_no_more(busy: Busy):
    busy.follow(400)
    busy.pass_time(60.0)
    before = busy.cpu_s

    busy.pass_time(60.0)

    assert busy.cpu_s - before <= 60.0 * 0.011


def test_a_file_that_has_just_sent_its_last_line_does_not_wait_behind_transfers(client: Client, tmp_path):
    agent, out = client.agent, tmp_path / "stdout"
    out.write_text("a line\n")
    agent.dispatch({"id": 2, "do": "follow", "files": [[str(out), 0]], "until": str(tmp_path / "outcome.json")}, b"")

    assert b"a line" in agent.out.from_sender()
    assert list(agent.out.lines) == [agent.requests[2]] and not agent.out.bodies
    while agent.out.lines:
        agent.out.from_sender()
    assert not agent.out.pending(), "it is asked once more, and has nothing"


class Waiting:
    """A request that waits for a file, and counts how often the watcher has it look."""

    follows_others = False

    def __init__(self, path: Path) -> None:
        self.path, self.looks = str(path), 0

    def look(self, ask_server: bool) -> bool:
        self.looks += 1
        return False

    def safely(self, action: Any) -> Any:
        return action()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_the_folder_of_one_job_wakes_only_those_who_wait_for_it(tmp_path):
    readers: dict[int, Any] = {}
    watcher = file_watcher.FileWatcher(readers, lambda _, action: action())
    jobs = [Waiting(tmp_path / str(number) / "attempts" / "1" / "outcome.json") for number in range(50)]
    for job in jobs:
        watcher.add(job)
    before = [job.looks for job in jobs]

    for job in jobs:
        Path(job.path).parent.mkdir(parents=True)
        for fd, read in list(readers.items()):
            read(fd)

    assert watcher.inotify is not None
    looks = [job.looks - begun for job, begun in zip(jobs, before)]
    assert min(looks) >= 1 and max(looks) <= 3, looks
    os.close(watcher.inotify.fd)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_a_file_is_looked_at_for_itself_and_once_for_many_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(file_watcher, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    readers: dict[int, Any] = {}
    later: list[Callable[[], object]] = []
    watcher = file_watcher.FileWatcher(readers, lambda _, action: later.append(action))
    followed, other = Waiting(tmp_path / "journal.jsonl"), Waiting(tmp_path / "values")
    for each in (followed, other):
        watcher.add(each)
        each.looks = 0
    assert watcher.inotify is not None
    fd = watcher.inotify.fd

    for _ in range(3):
        (tmp_path / "value.pkl").write_text("nobody follows it")
        Path(followed.path).write_text("1")
    readers[fd](fd)
    assert (followed.looks, other.looks) == (1, 0)

    for _ in range(file_watcher.FLOOD - 1):
        assert fd in readers
        Path(followed.path).write_text("2")
        readers[fd](fd)
    assert fd not in readers, "it is a flood"
    later.pop()()
    assert fd in readers, "the changes that came meanwhile are read together"
    os.close(fd)


class Slow:
    """An agent whose reads of heartbeats, or listings, take 10 ms of a clock that is the test's own."""

    def __init__(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agent, self.now, self.looks = agent, 1000.0, 0
        clock = SimpleNamespace(monotonic=lambda: self.now, process_time=lambda: self.now)
        for module in (growing_files, file_watcher, server, handler):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(growing_files, "read_at", lambda *_: self.look())
        monkeypatch.setattr(file_watcher, "names_in", lambda *_: set(map(str, self.look())))
        monkeypatch.setattr(file_watcher, "new_inotify", lambda: None)

    def look(self) -> bytes:
        self.looks += 1
        self.now += 0.01
        return b""

    def longest_turn(self, seconds: float) -> float:
        """Let the timers and the polls of so much time come; return how long one of them has kept the agent busy."""
        until, longest = self.now + seconds, 0.0
        while self.now < until:
            began = self.now
            self.agent.timers.run_due(self.now)
            self.agent.watcher.poll(self.now)
            longest = max(longest, self.now - began)
            self.now = max(self.now, min(self.agent.timers.first_due(), self.now + 0.05))
        return longest


@pytest.fixture
def slow(client: Client, monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(client.agent, monkeypatch)


def test_heartbeats_on_a_slow_file_server_leave_the_agent_time_for_others(slow: Slow):
    for number in range(2, 1002):
        slow.agent.dispatch(still(number, path=f"/nowhere/{number}", silent_s=12.0), b"")
    slow.longest_turn(60.0)
    before = slow.looks

    longest = slow.longest_turn(120.0)

    assert longest < 0.1, "a thousand looks take ten seconds, in which no request would be answered"
    assert 1000 <= slow.looks - before < 0.25 * 120.0 / 0.01


def test_a_poll_of_many_files_on_a_slow_server_lets_requests_be_answered(slow: Slow):
    for number in range(2, 502):
        slow.agent.dispatch({"id": number, "do": "follow", "files": [[f"/nowhere/{number}/events", 0]]}, b"")

    assert slow.longest_turn(60.0) < 0.1


def test_answers_leave_between_the_requests_of_one_read(client: Client, monkeypatch):
    came, handled = [], []

    class SlowHandler(server.RequestHandler):
        def start(self) -> None:
            handled.append(self.id)
            with contextlib.suppress(BlockingIOError):
                came.append(len(os.read(client.answers, 2**16)))
            time.sleep(0.01)
            self.end()

    monkeypatch.setitem(server.HANDLERS, "have", SlowHandler)
    client.write(b"".join(pack({"id": number, "do": "have"}) for number in range(2, 12)))

    while len(handled) < 10:
        client.agent.turn()

    assert len(came) >= 5, "the first answers have left before the last requests were taken"


def test_a_silent_job_that_has_ended_is_not_reported(client: Client, tmp_path):
    for number, name in ((2, "lives"), (3, "ended")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "heartbeat").write_bytes(b"1")
        fields = {"path": str(tmp_path / name / "heartbeat"), "unless": str(tmp_path / name / "outcome.json")}
        client.agent.dispatch(still(number, silent_s=0.04, **fields), b"")
    (tmp_path / "ended" / "outcome.json").write_bytes(b"{}")

    until(lambda: client.turns(1) or client.listen() or len(client.heard) >= 2)

    assert {header["id"] for header in client.heard} == {2}


def test_a_folder_that_is_gone_is_reported_whether_its_file_was_seen_or_not(client: Client, tmp_path):
    for number, job in enumerate(["waits", "never-began", "ran", "denied"], 2):
        (tmp_path / job).mkdir()
        if job in ("ran", "denied"):
            (tmp_path / job / "heartbeat").write_bytes(b"1")
        fields = {"path": str(tmp_path / job / "heartbeat"), "within": str(tmp_path / job)}
        client.agent.dispatch(still(number, silent_s=0.04, **fields), b"")
    open_ones: dict[int, Any] = client.agent.requests
    until(lambda: client.turns(1) or all(open_ones[number].last_content for number in (4, 5)))
    (tmp_path / "ran" / "heartbeat").unlink()
    (tmp_path / "ran").rmdir()
    (tmp_path / "never-began").rmdir()
    (tmp_path / "denied" / "heartbeat").unlink()
    (tmp_path / "denied" / "heartbeat").symlink_to("heartbeat")  # any error that does not say that it is missing

    until(lambda: client.turns(1) or client.listen() or len({header["id"] for header in client.heard}) == 3)

    said = {
        (each["id"], "gone" if each.get("gone") else str(each.get("error", "silent"))) for each in client.heard
    }  # fmt: skip
    assert said == {(3, "gone"), (4, "gone"), (5, "silent")}
