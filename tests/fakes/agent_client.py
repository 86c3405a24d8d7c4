"""A client of an agent that runs in this process: a pair of pipes, which may be slow to read. Needs Unix."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.agent import growing_files, job_template, runs, starts
from clusterfn.bridge.agent.frames import Inbox, pack
from clusterfn.bridge.agent.server import Agent
from clusterfn.config.spec import Host
from clusterfn.hosts.connection import HostConnection, connect
from tests.waiting import until

# The times of an agent that tests shorten.
_TIMES = {
    "read again": (growing_files, "AGAIN_S"), "server is away": (growing_files, "AWAY_S"),
    "server is away at the end": (growing_files, "AWAY_AT_END_S"), "job begins": (runs, "BEGINS_S"),
    "program starts again": (starts, "AGAIN_S"), "program starts at last": (starts, "PATIENCE_S"),
    "note is renewed": (starts, "RENEW_S"), "template answers": (job_template, "ANSWER_S"),
    "template is used": (job_template, "USED_S"),
}  # fmt: skip


def wait_for(patch: pytest.MonkeyPatch, what: str, seconds: float) -> None:
    """Let agents in this process wait that long for it."""
    patch.setattr(*_TIMES[what], seconds)


def connect_here(root: str) -> HostConnection:
    """A connection to an agent of this machine, as a process of its own."""
    return connect(Host("here", "", "local", "clusterfn.yml:1", root=root))


def away_for(patch: pytest.MonkeyPatch, path: Path, times: int) -> None:
    """Have the server be away for the first reads of this file."""
    left, read = [times], growing_files.read_at

    def read_at(name: str, *rest: int) -> bytes:
        if name == str(path) and left[0]:
            left[0] -= 1
            raise OSError(116, "Stale file handle", name)
        return read(name, *rest)

    patch.setattr(growing_files, "read_at", read_at)


class Client:
    """Asks an agent, lets it take turns, and reads its answers when it is told to."""

    def __init__(self) -> None:
        source, self.asking = os.pipe()
        self.answers, sink = os.pipe()
        self.fds = [source, self.asking, self.answers, sink]
        for fd in self.fds:
            os.set_blocking(fd, False)
        self.agent = Agent(source, sink)
        self.agent.readers[source] = self.agent.read
        self.inbox = Inbox()
        self.heard: list[dict[str, Any]] = []

    def start_few(self, jobs: int) -> None:
        """Let only so many jobs begin at a time."""
        self.agent.job_starts = starts.ProgramStarts(self.agent.at, jobs, 1)

    def start_few_programs(self, patch: pytest.MonkeyPatch, files: int) -> None:
        """Let only so many descriptors be for programs that start."""
        patch.setattr(starts.resource, "getrlimit", lambda _: (files, files))
        self.agent.starts = starts.ProgramStarts(self.agent.at, starts.room_for_programs(), starts.FILES_AT_START)

    def note_in(self, root: Path, machine: str) -> None:
        """Let it note below this root that jobs wait for their turn."""
        self.agent.root, self.agent.machine = str(root), machine
        self.agent.waiting_note = starts.WaitingNote(self.agent.at, self.agent.job_starts)

    def ask(self, **header: Any) -> None:
        self.write(pack(header))

    def write(self, data: bytes) -> None:
        """Write all of it. The agent takes turns meanwhile where its pipe is small, as for a user with many pipes."""
        while data:
            try:
                data = data[os.write(self.asking, data) :]
            except BlockingIOError:
                self.turns(1)

    def turns(self, count: int = 20) -> None:
        for _ in range(count):
            self.agent.at(0, lambda: None)  # or it would wait for something to happen
            self.agent.turn()
            self.agent.reap()  # no signals are caught here

    def listen(self) -> None:
        """Read until nothing more comes."""
        while self.agent.out.pending() or select.select([self.answers], [], [], 0)[0]:
            self.turns(1)
            with contextlib.suppress(BlockingIOError):  # it has asked for more, and had nothing to say yet
                self.heard += [header for header, _ in self.inbox.feed(os.read(self.answers, 2**20))]

    def send(self, data: bytes, **header: Any) -> None:
        """Send a chunk of any size, while the agent takes turns."""
        self.write(pack(dict(header, do="chunk"), data))
        self.turns(2)

    def answer_of(self, number: int) -> dict[str, Any]:
        """The newest answer to a request, once there is one; `heard` has only what came since the last."""
        self.heard.clear()

        def hear() -> bool:
            self.turns(1)
            with contextlib.suppress(BlockingIOError):
                self.heard += [header for header, _ in self.inbox.feed(os.read(self.answers, 2**20))]
            return any(each["id"] == number for each in self.heard)

        until(hear)
        return self.heard[-1]

    def lose(self) -> None:
        """End the connection in the agent's view: its requests release what they hold."""
        self.agent.templates.close()
        for request in list(self.agent.requests.values()):
            request.release()
        self.agent.requests.clear()

    def end(self) -> None:
        """Let it release what it holds, as an agent that has lost its client does."""
        self.lose()
        for fd in self.fds:
            os.close(fd)
