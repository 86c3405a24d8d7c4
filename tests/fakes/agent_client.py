"""A client of an agent that runs in this process: a pair of pipes, which may be slow to read. Needs Unix."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Any

from clusterfn.bridge.agent.frames import Inbox, pack
from clusterfn.bridge.agent.server import Agent
from tests.waiting import until


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

    def ask(self, **header: Any) -> None:
        os.write(self.asking, pack(header))

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
        frame = memoryview(pack(dict(header, do="chunk"), data))
        while frame:
            self.turns(1)
            with contextlib.suppress(BlockingIOError):
                frame = frame[os.write(self.asking, frame) :]
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
