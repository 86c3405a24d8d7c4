"""Shows a job in the thread that waits for it: a status line, and its output as it comes.

Output is printed here and not by the reader thread, because redirect_stdout and notebooks look at who prints.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.job_states import PENDING, SHORT
from clusterfn.calls import leaving
from clusterfn.display import console
from clusterfn.display.console import STREAMS, OutputWriter
from clusterfn.display.notebook import end_of, headline
from clusterfn.display.usage_words import describe_request, short_usage
from clusterfn.hosts import loop, spoken_wait

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.calls.job_run import JobRun

# It passes what a job prints to a function of the stream's name and the bytes. Entered, it gives a function that waits
# for the last of them.
Output = Callable[[Callable[[str, bytes], Any]], AbstractContextManager[Callable[[], None]]]
TICK_S = 1.0
_MOMENT_S = 0.5
_quickly_prepared: set[str] = set()


def show(run: JobRun, where: str, on_interrupt: str, output: Output) -> None:
    """Show a job until it has ended.

    Args:
        where: What to say at the start, such as "train on tensor01"; "" for nothing, where calls are many and short.
        on_interrupt: "detach" or "stop".
        output: Where what it prints comes from that its listeners do not get.

    Raises:
        KeyboardInterrupt: After Ctrl-C; the job continues unless it was stopped.
    """
    shown = _JobDisplay(run, where)
    try:
        with output(lambda name, data: shown.queue.put((name, data))) as await_rest:
            shown.until_done()
            await_rest()
            shown.show_rest()
    except KeyboardInterrupt:
        shown.show("")
        if leaving.has_value(run):
            leaving.leave_value(run)
        else:
            leaving.interrupted(run, on_interrupt)
        raise
    finally:
        shown.unlisten()


class _JobDisplay(console.Status):
    """What the screen shows of one waiting call."""

    def __init__(self, job: JobRun, where: str) -> None:
        super().__init__(began=max(time.monotonic(), job.submitted_at))
        self.job = job
        self.queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        # Most calls print nothing.
        self.output: OutputWriter | None = None
        self.trouble = ""
        # Where calls are many and short, a line would flicker for each of them.
        self.shows_from = 0.0 if where else self.began + TICK_S
        if where:
            console.tell(f"{job.id} {where}")
        # A bound method of `self` would keep the display and its job alive in a cycle.
        tell = self.queue.put
        self.unlisten = job.listen(lambda kind, what: tell((kind, what)))

    def until_done(self) -> None:
        self._status()
        while True:
            try:
                kind, what = self.queue.get(timeout=TICK_S)
            except queue.Empty:
                self._status()
                continue
            if kind == "done":
                self.show("")
                return
            if kind == "state":
                self._status()
            elif kind == "connection":
                self._connection(what)
            elif kind == "note":
                self._make_room()
                self._end_line()
                console.warn(what)
            else:
                self._output(kind, what)

    def show_rest(self) -> None:
        """Print the output that came with the end or after it."""
        while not self.queue.empty():
            kind, what = self.queue.get()
            if kind in STREAMS:
                self._output(kind, what)

    def _output(self, name: str, data: bytes) -> None:
        self._make_room()
        self.output = self.output or OutputWriter()
        self.output.write(name, data)

    def _make_room(self) -> None:
        # In a notebook the status line has a place of its own.
        if not console.is_notebook():
            self.show("")

    def _status(self) -> None:
        job = self.job
        if self.clock() < self.shows_from:
            return
        moving = "" if self.trouble else job.moving
        if moving or self.trouble or not self.output or job.is_silent or console.is_notebook():
            self._end_line()
            progress = job.transfer.progress if moving and job.transfer else None
            self.show(status_of(job, self._reason(), self.clock()), progress)
        else:
            self.show("")

    def _reason(self) -> str:
        """Say why it does not run, but not at once: most jobs start before there is anything to explain."""
        if self.trouble or self.job.state != PENDING:
            return self.trouble or self.job.reason
        waited_s = self.clock() - self.began
        reason = self.job.reason if waited_s >= spoken_wait.REASON_AFTER_S else ""
        return reason or (self.job.why_silent() if waited_s >= spoken_wait.SPEAK_AFTER_S else "")

    def _connection(self, trouble: str) -> None:
        """Show the loss of the connection in the status line; without one, print its loss and its return once."""
        changed, self.trouble = bool(trouble) != bool(self.trouble), trouble
        if changed and not console.can_redraw():
            console.tell(f"{self.job.id[:SHORT]} {trouble or f'the connection to {self.job.host} is back'}")
        else:
            self._status()

    def _end_line(self) -> None:
        if self.output:
            self.output.end_line()


def summary(run: JobRun, what: str, more: Sequence[str]) -> list[str]:
    """Return what a notebook shows of a job: what it is and does, what it asks for and has used, what it prints."""
    usage = run.published.get("usage") or {}
    waited_s = time.monotonic() - run.submitted_at if run.sent_here else None
    elapsed_s = usage.get("wall_s") if run.done() else waited_s
    title = headline(f"{what} on {run.host}", run.id, run.state, "", elapsed_s, run.reason)
    use = short_usage(usage)
    facts = [*describe_request(run.asked), *([f"used: {use}"] if use else []), *more]
    return [title, *(f"  {line}" for line in facts), *end_of(run.tail or b"")]


def status_of(job: JobRun | GroupState, reason: str, now: float) -> str:
    """Return such as "7f3a pending 00:12 (why)"."""
    waited = console.as_clock(now - job.submitted_at)
    return f"{job.id[:SHORT]} {job.state.lower()} {waited}{f' ({reason})' if reason else ''}"


@contextlib.contextmanager
def preparing(name: str) -> Iterator[None]:
    """Say that the arguments of a call are read and packed, if that takes long; not again once it took a moment."""
    began = time.monotonic()
    describe = functools.partial("preparing {}: reading and packing its arguments".format, name)
    with contextlib.nullcontext() if name in _quickly_prepared else loop.speaking(describe):
        yield
    if time.monotonic() - began < _MOMENT_S:
        _quickly_prepared.add(name)


@contextlib.contextmanager
def nothing_runs() -> Iterator[None]:
    """Say at Ctrl-C what it means while a call is prepared: parts may be on their way, but nothing starts."""
    try:
        yield
    except KeyboardInterrupt:
        text = "interrupted while preparing the call: it was not sent, and nothing runs"
        console.say(f"\nclusterfn: {text}\n", logging.WARNING)
        raise
