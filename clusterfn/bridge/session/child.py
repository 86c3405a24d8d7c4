"""A call in a process of its own: forked, it runs the call as a worker does; its parent hears how far it came."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import select
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

from ..layout import FAILED_RANK, STDERR, STDOUT, WORK
from ..supervisor import classify_exit, gpus, memory
from ..supervisor.output import Pump
from ..worker import children, execute, payload
from ..worker.report import Report
from . import preload

_TURN_MS, _BLIND_TURN_MS = 100, 10


@dataclass(frozen=True)
class CallFolder:
    """Where a call lies, and what it needs to run.

    Attributes:
        folder: With its payload.
        attempt: With what it prints, its value and its outcome.
        spec: The session's, with the folders of this call's modules.
    """

    folder: str
    attempt: str
    spec: dict[str, Any]

    def path(self, name: str) -> str:
        """Of a file of the attempt."""
        return os.path.join(self.attempt, name)


class ForkedCall:
    """The process of one call, as its parent sees it.

    Attributes:
        heard: The worker's lines that nobody has taken yet.
        ended: Its wait status and what it used; None while it lives.
        pumps: Of what it prints: stdout and stderr, each up to the limit of the session's job.
    """

    def __init__(self, place: CallFolder) -> None:
        self.heard: list[dict[str, Any]] = []
        self.ended: tuple[int, Any] | None = None
        self._partial = b""
        self._report, writing = os.pipe()
        pipes = [os.pipe() for _ in (STDOUT, STDERR)]
        self.pid = os.fork()
        if self.pid == 0:
            for fd in (self._report, *(reading for reading, _ in pipes)):
                os.close(fd)
            _live(place, writing, [printing for _, printing in pipes])
        for fd in (writing, *(printing for _, printing in pipes)):
            os.close(fd)
        for reading, _ in pipes:
            os.set_blocking(reading, False)
        limit = place.spec["log_limit_bytes"]
        self.pumps = [Pump(pipe[0], place.path(name), limit) for pipe, name in zip(pipes, (STDOUT, STDERR))]
        os.set_blocking(self._report, False)
        self._end = _end_of(self.pid)

    def turn(self) -> None:
        """Wait for something for a moment, and take what came."""
        poll = select.poll()
        for fd in (self._report, self._end, *(pump.fd for pump in self.pumps)):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        poll.poll(_TURN_MS if self._end >= 0 else _BLIND_TURN_MS)
        for pump in self.pumps:
            if pump.fd >= 0:
                pump.move()
        self._hear()
        self._reap()

    def _hear(self) -> None:
        if self._report < 0:
            return
        try:
            data = os.read(self._report, 1 << 20)
        except BlockingIOError:
            return
        if not data:
            os.close(self._report)
            self._report = -1
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        self.heard += map(classify_exit.parse_report_line, lines)

    def _reap(self) -> None:
        """Collect the dead: the call's process, and orphans that became ours."""
        with contextlib.suppress(ChildProcessError):
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            while pid:
                if pid == self.pid:
                    self.ended = status, usage
                    self._forget_end()
                gpus.is_asker(pid)
                pid, status, usage = os.wait4(-1, os.WNOHANG)

    def _forget_end(self) -> None:
        if self._end >= 0:
            os.close(self._end)
        self._end = -1

    def close(self) -> None:
        """Hear nothing more."""
        self._forget_end()
        for pump in self.pumps:
            pump.drain()
            pump.forget()
        if self._report >= 0:
            os.close(self._report)
        self._report = -1


def _end_of(pid: int) -> int:
    """What can be polled until the process ends; -1 where the kernel (before 5.3) has nothing of the kind."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _live(place: CallFolder, writing: int, printing: list[int]) -> NoReturn:
    """The whole life of the forked process."""
    status = 1
    try:
        report = Report(writing)
        children.report_own_signals(report.say)
        os.environ[payload.FAILED] = place.path(FAILED_RANK)
        known = list(sys.modules)
        _settle(place, printing)
        value = execute.open_value_file(place.attempt)
        try:
            facts = execute.run_call(place.folder, place.spec, [], report, value)
        except execute.CallRejected as rejected:
            facts = rejected.facts
        report.say(loaded=preload.imported_since(known), peak=memory.peak_of(os.getpid()))
        execute.report_outcome(report, facts)
        status = 0
        _end_as_python_does()
    finally:
        os._exit(status)


def _settle(place: CallFolder, printing: list[int]) -> None:
    """As a process that was just started for this call: its own output, folder, signals and random numbers."""
    for fd, pipe in zip((1, 2), printing):
        os.dup2(pipe, fd)
        os.close(pipe)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked: str | None = place.spec["cwd"]
    os.chdir(os.path.expanduser(os.path.expandvars(asked)) if asked else place.path(WORK))
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # torch starts from the same seed in every process, forked or not


def _end_as_python_does() -> None:
    """What an interpreter does at its end, which a forked process must not reach by unwinding its parent's frames."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
