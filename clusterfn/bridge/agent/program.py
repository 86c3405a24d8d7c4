"""A program with pipes, from its start to the last byte of its output."""

import os
import signal
import subprocess

from .files import CHUNK
from .paths import expand
from .request import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    from .frames import Header
    from .loop import Agent

OUTPUT_LIMIT = 4 * 1024 * 1024
LINGER_S = 0.2  # for output that a finished program's children still hold open


def changed_environment(header: "Header") -> "Dict[str, str]":
    """This process's variables without those of `unset`'s prefixes, and with those of `env`."""
    dropped = tuple(header.get("unset") or ())
    environment = {name: value for name, value in os.environ.items() if not (dropped and name.startswith(dropped))}
    environment.update(header.get("env") or {})
    return environment


class Program:
    """A program with pipes, in a process group of its own; `done` is called once."""

    def __init__(self, agent: "Agent", header: "Header", stdin: bytes, done: "Callable[[Program], None]") -> None:
        self.agent = agent
        self.done = done
        self.input = memoryview(stdin)
        self.output: "Dict[int, List[bytes]]" = {}
        self.sizes: "Dict[int, int]" = {}
        self.truncated = self.timed_out = self.finished = False
        self.status: "Optional[int]" = None
        cwd, timeout_s = header.get("cwd"), seconds(header, "timeout_s", 60.0)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            header["argv"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=expand(cwd) if cwd else None,
            env=changed_environment(header), start_new_session=True, close_fds=True,
        )  # fmt: skip
        self.pid = self.process.pid
        agent.children[self.pid] = self.on_exit
        self.connect_pipes()
        agent.at(timeout_s, self.on_timeout)

    def connect_pipes(self) -> None:
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self.pipes())
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
            self.output[fd], self.sizes[fd] = [], 0
            self.agent.readers[fd] = self.on_output
        os.set_blocking(self.stdin, False)
        self.agent.writers[self.stdin] = self.on_room

    def pipes(self) -> "List[Any]":
        return [self.process.stdin, self.process.stdout, self.process.stderr]

    def on_room(self, fd: int) -> None:
        try:
            self.input = self.input[os.write(fd, self.input) if len(self.input) else 0 :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.input = memoryview(b"")
        if not len(self.input):
            del self.agent.writers[fd]
            self.pipes()[0].close()

    def on_output(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        room = OUTPUT_LIMIT - self.sizes[fd]
        self.truncated = self.truncated or len(data) > room
        self.output[fd].append(data[:room])
        self.sizes[fd] += len(data[:room])
        if not data:
            del self.agent.readers[fd]
            self.maybe_done()

    def on_exit(self, status: int) -> None:
        self.status = status
        self.process.returncode = status
        self.maybe_done()
        if not self.finished:
            self.agent.at(LINGER_S, self.finish)

    def on_timeout(self) -> None:
        if self.status is None:
            self.timed_out = True
            self.kill()

    def kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def maybe_done(self) -> None:
        if self.status is not None and not any(fd in self.agent.readers for fd in self.output):
            self.finish()

    def finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        for fd in self.output:
            self.agent.readers.pop(fd, None)
        if not self.pipes()[0].closed:  # else its number may be another program's by now
            self.agent.writers.pop(self.stdin, None)
        for pipe in self.pipes():
            pipe.close()
        self.done(self)
        self.output.clear()

    def text(self, fd: int) -> bytes:
        return b"".join(self.output[fd])

    def result(self) -> "Header":
        status = self.status or 0
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return {"rc": None if ended_by else os.WEXITSTATUS(status), "signal": ended_by, "truncated": self.truncated}
