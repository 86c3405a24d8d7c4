"""Shows a job in the thread that waits for it: a status line, its output as it comes, and what Ctrl-C means.

Output is printed here and not by the reader thread, because redirect_stdout and notebooks look at who prints.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge.job_states import CANCELLED, PENDING, SHORT
from clusterfn.calls.job import Job, entry_of
from clusterfn.display import console
from clusterfn.display.console import STREAMS, OutputWriter
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import exit_flush, loop, spoken_wait
from clusterfn.hosts.transfer import TELL_EVERY_S, Sending

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.calls.job_entry import JobEntry

R = TypeVar("R")
# It passes what a job prints to a function of the stream's name and the bytes. Entered, it gives a function that waits
# for the last of them.
Output = Callable[[Callable[[str, bytes], Any]], AbstractContextManager[Callable[[], None]]]
_TICK_S = 1.0
_SECOND_INTERRUPT_S = 3.0
# At the end of the program, sending is given up after this time without a byte.
STALLED_S = 60.0
_LOOK_S = 0.2
PREPARING_S = 2.0
_IDLE_S = 5.0


def result(job: Job[R], where: str, on_interrupt: str = "detach", output: Output | None = None) -> R:
    """Wait for the job and show it meanwhile.

    Args:
        job: It must be followed live, unless `output` is given.
        where: What to say at the start, such as "train on tensor01"; "" for nothing, where calls are many and short.
        on_interrupt: "detach" or "stop".
        output: Where what it prints comes from, if the job itself is not followed live.

    Returns:
        The job's value.

    Raises:
        KeyboardInterrupt: After Ctrl-C; the job continues unless it was stopped.
        Exception: What the job raises.
    """
    entry = entry_of(job)
    shown = _JobDisplay(entry, where)
    try:
        coming = output(lambda name, data: shown.queue.put((name, data))) if output else nullcontext(lambda: None)
        with coming as await_rest:
            shown.until_done()
            await_rest()
            shown.show_rest()
    except KeyboardInterrupt:
        shown.leave("interrupted")
        if _has_value(entry):
            _leave_value(entry)
        else:
            interrupted(entry, on_interrupt)
        raise
    finally:
        shown.unlisten()
    return job.result()


class _JobDisplay(console.StatusLine):
    """What the screen shows of one waiting call."""

    def __init__(self, job: JobEntry, where: str) -> None:
        super().__init__()
        self.job = job
        self.queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        # Most calls print nothing.
        self.output: OutputWriter | None = None
        self.trouble = ""
        self.due = 0.0
        began = max(time.monotonic(), job.submitted_at)
        self.explains_from, self.speaks_from = began + spoken_wait.REASON_AFTER_S, began + spoken_wait.SPEAK_AFTER_S
        # Where calls are many and short, a line would flicker for each of them.
        self.shows_from = 0.0 if where else time.monotonic() + _TICK_S
        self.in_cell = f"clusterfn: {job.id} {where}" if where and console.cell_status() is not None else ""
        if where and not self.in_cell:
            console.tell(f"{job.id} {where}")
        # A bound method of `self` would keep the display and its job alive in a cycle.
        tell = self.queue.put
        self.unlisten = job.listen(lambda kind, what: tell((kind, what)))

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
            elif kind == "note":
                self._note(what)
            else:
                self._output(kind, what)

    def show_rest(self) -> None:
        """Print the output that came with the end or after it."""
        while not self.queue.empty():
            kind, what = self.queue.get()
            if kind in STREAMS:
                self._output(kind, what)

    def _output(self, name: str, data: bytes) -> None:
        # In a notebook the status line has a place of its own.
        if not self.in_cell:
            self.clear()
        self.output = self.output or OutputWriter()
        self.output.write(name, data)

    def _note(self, sentence: str) -> None:
        if not self.in_cell:
            self.clear()
            self._end_line()
        console.warn(sentence)

    def _status(self) -> None:
        if time.monotonic() < self.shows_from:
            return
        moving = "" if self.trouble else self.job.moving
        progress = self.job.transfer.progress if moving and self.job.transfer else None
        if self.in_cell:
            self.redraw(f"{self.in_cell}: {self._text(with_clock=True).partition(' ')[2]}", progress)
        elif console.can_redraw():
            if moving:
                self._end_line()
            shown = moving or self.trouble or not self.output or self.job.is_silent
            self.redraw(self._text(with_clock=True) if shown else "", progress)
        elif moving:
            if time.monotonic() >= self.due:
                self.due = time.monotonic() + TELL_EVERY_S
                self.say_if_changed(f"clusterfn: {self._text(with_clock=False)}")
        elif not self.trouble and (self._waits() or not self.output and time.monotonic() >= self.speaks_from):
            self.say_reason(f"clusterfn: {self._text(with_clock=False)}", time.monotonic())

    def _waits(self) -> bool:
        """Whether there is something to say of why it does not run."""
        return bool((self.job.state == PENDING or self.job.is_silent) and self.job.reason) and self._explains()

    def _explains(self) -> bool:
        return self.job.state != PENDING or time.monotonic() >= self.explains_from

    def _connection(self, trouble: str) -> None:
        """Show the loss of the connection in the status line; without one, print its loss and its return once."""
        changed, self.trouble = bool(trouble) != bool(self.trouble), trouble
        if not console.can_redraw() and changed:
            console.tell(f"{self.job.id[:SHORT]} {trouble or f'the connection to {self.job.host} is back'}")
        elif trouble and not self.in_cell:
            self._end_line()
        self._status()

    def _end_line(self) -> None:
        if self.output:
            self.output.end_line()

    def _text(self, with_clock: bool) -> str:
        clock = f" {console.as_clock(time.monotonic() - self.job.submitted_at)}" if with_clock else ""
        reason = self.trouble or (self.job.reason if self._explains() else "")
        if not reason and self.job.state == PENDING and time.monotonic() >= self.speaks_from:
            reason = self.job.tracker.why_silent()
        return f"{self.job.id[:SHORT]} {self.job.state.lower()}{clock}{f' ({reason})' if reason else ''}"

    def leave(self, why: str) -> None:
        """Remove the status line; in a notebook it stays, and says why it is not updated any more."""
        if self.in_cell:
            self.redraw(f"{self.in_cell}: {why} while {self._text(with_clock=True).partition(' ')[2]}")
            self.close()
        else:
            self.clear()

    def clear(self) -> None:
        """Remove the status line, so that output starts at the left; in a notebook it stays, with the last state."""
        if self.in_cell:
            self._status()
            self.close()
        elif self.line and console.can_redraw():
            self.redraw("")


open_jobs: weakref.WeakSet[JobEntry | GroupState] = weakref.WeakSet()
_parting: weakref.WeakKeyDictionary[JobEntry | GroupState, str] = weakref.WeakKeyDictionary()


def remember_going(job: JobEntry | GroupState, parting: str = "") -> None:
    """Print at exit, if it has not ended, how to get back to it; `parting` replaces the usual words."""
    _tell_at_exit()
    open_jobs.add(job)
    if parting:
        _parting[job] = parting


def forget_going(job: JobEntry | GroupState) -> None:
    """Forget a job that was refused or closed: nothing of it continues."""
    open_jobs.discard(job)


@functools.cache
def _tell_at_exit() -> None:
    # atexit runs what was registered last first: this must run after `_tell_what_goes_on`.
    exit_flush.finish_at_exit()
    atexit.register(_tell_what_goes_on)


def _tell_what_goes_on() -> None:
    """Print how to get back to jobs that keep running; first wait for what may still be refused."""
    # These were not sent when the program ended, so their users have not heard yet whether they arrived.
    late = [job for job, _ in _all_unsent()]
    finish_sending()
    # This comes first, because an answer may be that the scheduler has no room for a job.
    sent = exit_flush.finish_all()
    finish_submitting()
    sent = exit_flush.finish_all() and sent
    for job in late:
        if job.done() and not job.is_stopping:
            _tell_of_end(job)
    going = [job for job in open_jobs if not job.done() and not job.is_stopping]
    left = sorted((_what_goes_on(job), _parting_words(job), job.id) for job in going)
    # Jobs with the same words share a line, because a program may leave hundreds of them.
    for what, words in sorted({(what, words) for what, words, _ in left}):
        ids = [job_id[:SHORT] for each, how, job_id in left if (each, how) == (what, words)]
        how = words.replace("ID", ids[0]) if len(ids) == 1 else words
        console.tell(f"{what}{'' if sent else ', if it was sent before Ctrl-C'}: {' '.join(ids)} ({how})")


def _what_goes_on(job: JobEntry | GroupState) -> str:
    """Say whether a job waits or runs. Until its host has said why it waits, it may already run."""
    if job.waits_here:
        return f"waits in this program until {job.host} takes it"
    waits = job.state == PENDING and job.reason and not job.unanswered
    return f"{'stays in the queue of' if waits else 'keeps running on'} {job.host}"


def _tell_of_end(job: JobEntry | GroupState) -> None:
    """Say that a job was sent and has ended, and how to get its result, once no call waits for it."""
    how = _how_to_get(job).replace("ID", job.id[:SHORT])
    console.warn(f"{job.id} was sent, and has ended: {job.status} ({how})")


def _parting_words(job: JobEntry | GroupState) -> str:
    return _parting.get(job) or f"{_how_to_get(job)}, clusterfn cancel ID ends it"


def _how_to_get(job: JobEntry | GroupState) -> str:
    """Say how to get what the job is run for: its value, or what a command prints and its exit status."""
    return f"clusterfn {'result ID gets its value' if job.has_value else 'attach ID follows it to its exit status'}"


def finish_sending() -> None:
    """Send what has not left this machine, as long as any of it moves and until Ctrl-C; then drop it."""
    due, moved, moved_at, unsent = 0.0, -1, time.monotonic(), _all_unsent()
    try:
        while unsent and time.monotonic() - moved_at < STALLED_S:
            now, before, moved = time.monotonic(), moved, sum(sending.moved for _, sending in unsent)
            moved_at = now if moved != before else moved_at
            far = [(job, sending.amounts()) for job, sending in unsent]
            shown = "; ".join(f"{amounts}, {job.id[:SHORT]} to {job.host}" for job, amounts in far if amounts)
            line = f"clusterfn: sending (Ctrl-C cancels it): {shown}"
            if shown and console.can_redraw():
                shares = [share for _, sending in unsent if (share := sending.progress)]
                console.redraw(line, tuple(map(sum, zip((0, 0), *shares))))
            elif shown and now >= due:
                due = now + TELL_EVERY_S
                console.say(f"{line}\n")
            time.sleep(_LOOK_S)
            unsent = _all_unsent()
        if moved >= 0 and console.can_redraw():
            console.redraw("")
    except KeyboardInterrupt:
        console.say("\n")
    for job, _ in unsent:
        _stop(job)


def finish_submitting() -> None:
    """Wait for schedulers that take no jobs now: only this program can submit these jobs. Ctrl-C drops them."""
    shown = ""
    try:
        while waiting := [job for job in list(open_jobs) if job.waits_here]:
            which = f"{waiting[0].id[:SHORT]} waits" if len(waiting) == 1 else f"{len(waiting)} jobs wait"
            line = f"{which} in this program until submitted (Ctrl-C drops them): {waiting[0].reason}"
            if line != shown:
                shown = line
                console.tell(line)
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        console.say("\n")
        for job in [job for job in list(open_jobs) if job.waits_here]:
            _stop(job)


def _all_unsent() -> list[tuple[JobEntry | GroupState, Sending]]:
    return [(job, sending) for job in list(open_jobs) if (sending := _unsent(job)) is not None]


def _unsent(job: JobEntry | GroupState) -> Sending | None:
    """Return its upload, if part of that has not left this machine."""
    sending = job.transfer
    return sending if isinstance(sending, Sending) and sending.unsent and not job.done() else None


def interrupted(job: JobEntry | GroupState, on_interrupt: str, how: str = "result()") -> None:
    """Detach at the first Ctrl-C, and say so; stop the job at a second one within three seconds.

    What has not left this machine is sent before the program ends, and until then each Ctrl-C drops it.
    """
    if on_interrupt == "stop":
        _stop(job)
        return
    short, sending = job.id[:SHORT], _unsent(job)
    get = f"  get its result:  clusterfn result {short}   or  clusterfn.attach({job.id!r}).{how}"
    if not job.has_value:
        get = f"  follow it:       clusterfn attach {short}   which exits with its exit status"
    try:
        if sending is not None:
            amounts = sending.amounts()
            console.say(
                f"\nclusterfn: still sending {job.id} to {job.host}{f' ({amounts})' if amounts else ''};"
                f" it runs once all of it has arrived.\n  press {console.interrupt()} again and nothing will run\n",
                logging.WARNING,
            )
        else:
            # The lines below say what becomes of the job, so the end of the program must not repeat it.
            open_jobs.discard(job)
            console.say(
                f"\nclusterfn: {job.id} {_what_goes_on(job)}. It is {job.status_since}.\n"
                f"{get}\n"
                f"  stop it:         clusterfn cancel {short}   or  press {console.interrupt()} again within 3 s\n",
                logging.WARNING,
            )
        _time_for_a_second()
    except KeyboardInterrupt:
        _stop(job)
        return
    # Otherwise a line appears when the program ends.
    if sending is not None and not sending.unsent:
        open_jobs.discard(job)
        if job.done():
            _tell_of_end(job)
        else:
            parting = _parting_words(job).replace("ID", short)
            console.warn(f"{job.id} was sent, and {_what_goes_on(job)} ({parting})")


def _has_value(job: JobEntry) -> bool:
    """Whether the value is on its way here, so that the function has ended."""
    receiving = job.transfer
    return receiving is not None and not isinstance(receiving, Sending) and receiving.moved > 0 and not job.done()


def _leave_value(job: JobEntry) -> None:
    """Say at Ctrl-C where the value stays. To stop such a job would save nothing, and lose the value."""
    open_jobs.discard(job)
    how = f"clusterfn result {job.id[:SHORT]}   or  clusterfn.attach({job.id!r}).result()"
    # Only the program that made the calls of a session knows them.
    if "/" in job.id:
        how = f"it is in {job.folder}, but only this program could load it"
    console.say(
        f"\nclusterfn: the function of {job.id} has ended, and its value stays on {job.host}.\n"
        f"  get its result:  {how}\n",
        logging.WARNING,
    )


@contextlib.contextmanager
def nothing_runs() -> Iterator[None]:
    """Say at Ctrl-C what it means while a call is prepared: parts may be on their way, but nothing starts."""
    try:
        yield
    except KeyboardInterrupt:
        text = "interrupted while preparing the call: it was not sent, and nothing runs"
        console.say(f"\nclusterfn: {text}\n", logging.WARNING)
        raise


@contextlib.contextmanager
def preparing(name: str) -> Iterator[None]:
    """Say that the arguments of a call are read and packed, if that takes longer than a moment."""
    call = object()
    try:
        _preparations.begin(call, name)
        yield
    finally:
        _preparations.open.pop(call, None)


class _Preparations:
    """The calls that are being prepared, watched by one task: beginning one for each would slow down short calls.

    The task polls, because waking the loop for each call would take time as well. It ends when none has come for a
    while.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all calls in a forked child: they are the parent's, and so is the task."""
        # When to report the call, and its name. Threads only add and remove their own calls, in one step each.
        self.open: dict[object, tuple[float, str]] = {}
        self._last = float("-inf")
        self._is_watched = False

    def begin(self, call: object, name: str) -> None:
        """Take note of a call."""
        self._last = time.monotonic()
        self.open[call] = self._last + PREPARING_S, name
        if not self._is_watched:
            self._is_watched = True
            try:
                loop.call(lambda: loop.begin(self._watch()))
            except RuntimeError:
                # The interpreter is ending, or may have no more threads. The message is not important enough to fail
                # the call.
                self._is_watched = False

    async def _watch(self) -> None:
        try:
            while self.open or time.monotonic() < self._last + _IDLE_S:
                await asyncio.sleep(_LOOK_S)
                now = time.monotonic()
                for call, (due, name) in list(self.open.items()):
                    if due <= now and self.open.pop(call, None) is not None:
                        words = f"preparing {name}: reading and packing its arguments"
                        # A terminal may block, and the loop must not.
                        await loop.in_thread(functools.partial(console.tell, words), "clusterfn-preparing")
        finally:
            self._is_watched = False


_preparations = _Preparations()
if hasattr(os, "register_at_fork"):
    # Windows has no fork.
    os.register_at_fork(after_in_child=_preparations.forget)


def _time_for_a_second() -> None:
    """Wait, and say so, for as long as a second Ctrl-C counts."""
    # Ctrl-C reaches only the main thread, so another one would wait in vain.
    if threading.current_thread() is not threading.main_thread():
        return
    redrawn = console.can_redraw()
    if not redrawn:
        console.tell(f"waiting {_SECOND_INTERRUPT_S:.0f} s for a second {_again()}")
    try:
        for left in range(int(_SECOND_INTERRUPT_S), 0, -1):
            if redrawn:
                console.redraw(f"clusterfn: waiting {left} s for a second {_again()}")
            time.sleep(1.0)
    finally:
        if redrawn:
            console.redraw("")


def _again() -> str:
    return "Ctrl-C" if console.cell_status() is None else "press of the stop button"


def _stop(job: JobEntry | GroupState) -> None:
    # The lines below say what becomes of the job, so the end of the program must not repeat it.
    open_jobs.discard(job)
    sending = job.transfer
    try:
        if not job.done():
            job.stop()
    except ClusterfnError as error:
        console.say(
            f"clusterfn: {job.id} could not be stopped: {error.message}\n"
            f"  it may run on {job.host}; to stop it:  clusterfn cancel {job.id[:SHORT]}\n",
            logging.WARNING,
        )
        return
    if isinstance(sending, Sending) and sending.dropped:
        console.warn(f"{job.id} was not sent completely: nothing runs on {job.host}.")
        return
    # The job may have ended by itself before the request to stop it arrived.
    came_late = job.done() and job.state != CANCELLED
    console.warn(f"{job.id} {f'had already ended: {job.status}' if came_late else 'was stopped.'}")
