"""Shows a job in the thread that waits for it: a status line, its output as it comes, and what Ctrl-C means.

Output is printed here and not by the reader thread, because redirect_stdout and notebooks look at who prints. Called by
`dispatch` and the CLI; the only part of the library that prints.
"""

from __future__ import annotations

import atexit
import codecs
import os
import queue
import shutil
import sys
import threading
import time
import weakref
from typing import IO, TYPE_CHECKING, Any, TextIO, TypeVar

from clusterfn import leaving
from clusterfn.bridge.supervisor.text import in_one_line, printable
from clusterfn.job import CANCELLED, PENDING, SHORT, Job

if TYPE_CHECKING:
    from clusterfn.groupstate import GroupState

R = TypeVar("R")
_TICK_S = 1.0
_SECOND_INTERRUPT_S = 3.0


def result(job: Job[R], where: str, on_interrupt: str = "detach") -> R:
    """Wait for the job and show it meanwhile.

    Args:
        job: It must be followed live.
        where: What to say at the start, such as "train on tensor01".
        on_interrupt: "detach" or "stop".

    Returns:
        The job's value.

    Raises:
        KeyboardInterrupt: After Ctrl-C; the job goes on unless it was stopped.
        Exception: What the job raises.
    """
    shown = _Shown(job, where)
    try:
        shown.until_done()
    except KeyboardInterrupt:
        shown.clear()
        interrupted(job, on_interrupt)
        raise
    return job.result()


class _Shown:
    """What stands on the screen of one waiting call."""

    def __init__(self, job: Job[Any], where: str) -> None:
        self.job = job
        self.queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self.line = ""
        self.spoken = False
        self.within_a_line = False
        self.trouble = ""
        say(f"clusterfn: {job.id} {where}\n")
        tell = self.queue.put  # not self, which holds the job: they would keep each other
        job.listen(lambda kind, what: tell((kind, what)))

    def until_done(self) -> None:
        self._status()
        while True:
            try:
                kind, what = self.queue.get(timeout=_TICK_S)
            except queue.Empty:
                self._status()
                continue
            if kind == "done":
                self.clear()
                return
            if kind == "state":
                self._status()
            elif kind == "connection":
                self._connection(what)
            else:
                self._output(kind, what)

    def _output(self, name: str, data: bytes) -> None:
        self.clear()
        text = self.decoders[name].decode(data)
        self.spoken, self.within_a_line = True, not text.endswith("\n")
        _write(sys.stdout if name == "stdout" else sys.stderr, text)

    def _status(self) -> None:
        if is_terminal(sys.stderr):
            self._redraw("" if self.spoken and not self.trouble else self._text(with_clock=True))
        elif self.job.state == PENDING and self.job.reason and not self.trouble:
            self._say_anew(self._text(with_clock=False))

    def _say_anew(self, line: str) -> None:
        if line != self.line:
            self.line = line
            say(f"clusterfn: {line}\n")

    def _connection(self, trouble: str) -> None:
        """Said in the status line; where there is none, once when the connection is lost and once when it is back."""
        changed, self.trouble = bool(trouble) != bool(self.trouble), trouble
        if not is_terminal(sys.stderr) and changed:
            say(f"clusterfn: {self.job.id[:SHORT]} {trouble or f'the connection to {self.job.host} is back'}\n")
        elif trouble and self.within_a_line:
            say("\n")
            self.within_a_line = False
        self._status()

    def _text(self, with_clock: bool) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self.job.submitted_at), 60)
        clock = f" {minutes:02d}:{seconds:02d}" if with_clock else ""
        reason = self.trouble or self.job.reason
        return f"{self.job.id[:SHORT]} {self.job.state.lower()}{clock}{f' ({reason})' if reason else ''}"

    def _redraw(self, line: str) -> None:
        line = in_one_line(line)[: shutil.get_terminal_size().columns - 1]
        if line != self.line:
            redraw(line)
            self.line = line

    def clear(self) -> None:
        """Take the status line away, so that output starts at the left."""
        if self.line and is_terminal(sys.stderr):
            self._redraw("")


_going: weakref.WeakSet[Job[Any] | GroupState] = weakref.WeakSet()
_parting: weakref.WeakKeyDictionary[Job[Any] | GroupState, str] = weakref.WeakKeyDictionary()
_PARTING = "clusterfn result ID: its value, clusterfn cancel ID: its end"


def remember_going(job: Job[Any] | GroupState, parting: str = "") -> None:
    """Whoever leaves before it has ended is to be told, and how to go on with it; `parting` in place of the usual."""
    _going.add(job)
    if parting:
        _parting[job] = parting


def forget_going(job: Job[Any] | GroupState) -> None:
    """It was refused, or closed: nothing of it goes on."""
    _going.discard(job)


@atexit.register
def _tell_what_goes_on() -> None:
    """Who leaves while jobs run should know how to find them; what is refused at the last moment does not."""
    sent = leaving.finish_all()
    going = [job for job in _going if not job.done() and not job.is_stopping]
    left = sorted((job.host, _parting.get(job, _PARTING), job.id) for job in going)
    for host, words in sorted({(host, words) for host, words, _ in left}):
        ids = " ".join(job_id[:SHORT] for where, how, job_id in left if (where, how) == (host, words))
        say(f"clusterfn: on {host} {'goes on' if sent else 'goes on, if it was sent before Ctrl-C'}: {ids} ({words})\n")


def interrupted(job: Job[Any] | GroupState, on_interrupt: str, how: str = "result()") -> None:
    """The first Ctrl-C detaches and says so; a second within three seconds stops the job."""
    _going.discard(job)  # what becomes of it is told here
    if on_interrupt == "stop":
        _stop(job)
        return
    try:
        say(
            f"\nclusterfn: {job.id} goes on on {job.host}.\n"
            f"  its result:  clusterfn result {job.id[:SHORT]}   or  clusterfn.attach({job.id!r}).{how}\n"
            f"  to stop it:  clusterfn cancel {job.id[:SHORT]}   or  Ctrl-C again within 3 s\n"
        )
        _time_for_a_second(job)
    except KeyboardInterrupt:
        _stop(job)


def _time_for_a_second(job: Job[Any] | GroupState) -> None:
    """Wait for the time in which a second Ctrl-C counts."""
    if threading.current_thread() is threading.main_thread():
        time.sleep(_SECOND_INTERRUPT_S)


def _stop(job: Job[Any] | GroupState) -> None:
    if not job.done():
        job.stop()
    came_late = job.done() and job.state != CANCELLED
    say(f"clusterfn: {job.id} {f'had ended already: {job.status}' if came_late else 'was stopped.'}\n")


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether the stream is a terminal that can redraw a line."""
    return stream is not None and hasattr(stream, "isatty") and stream.isatty() and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    """Print words of ours, without what a host or another user put into them for the terminal to obey."""
    _write(sys.stderr, printable(text))


def redraw(line: str) -> None:
    """Put a line of ours in the place of the one that is there; the cursor stays in it."""
    _write(sys.stderr, f"\r\x1b[K{in_one_line(line)}")


def _write(stream: TextIO | None, text: str) -> None:
    """Print; a character that this stream cannot show must not cost the job's value."""
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
