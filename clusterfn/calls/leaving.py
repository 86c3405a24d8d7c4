"""What becomes of a job that its program leaves: by Ctrl-C, or at the end of the program."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from clusterfn.bridge.job_states import CANCELLED, PENDING, SHORT
from clusterfn.display import console
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import exit_flush
from clusterfn.hosts.transfer import Sending

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.calls.job_run import JobRun

_SECOND_INTERRUPT_S = 3
# At the end of the program, sending is given up after this time without a byte.
STALLED_S = 60.0
_LOOK_S = 0.2
open_jobs: weakref.WeakSet[JobRun | GroupState] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    # A child that ends must not wait for jobs of its parent, nor stop them.
    os.register_at_fork(after_in_child=open_jobs.clear)
_parting: weakref.WeakKeyDictionary[JobRun | GroupState, str] = weakref.WeakKeyDictionary()


def remember_going(job: JobRun | GroupState, parting: str = "") -> None:
    """Print at exit, if it has not ended, how to get back to it; `parting` replaces the usual words."""
    _tell_at_exit()
    open_jobs.add(job)
    if parting:
        _parting[job] = parting


def known_jobs() -> list[JobRun | GroupState]:
    """Return those that were neither forgotten nor dropped by the program."""
    while True:
        # Another thread may add one.
        with contextlib.suppress(RuntimeError):
            return list(open_jobs)


def forget_going(job: JobRun | GroupState) -> None:
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
    # A map on several hosts may have sent items on.
    finish_sending()
    finish_submitting()
    sent = exit_flush.finish_all() and sent
    for job in late:
        if job.done() and not job.is_stopping:
            _tell_of_end(job)
    going = [job for job in known_jobs() if not job.done() and not job.is_stopping]
    left = sorted((_what_goes_on(job), _parting_words(job), job.id) for job in going)
    # Jobs with the same words share a line, because a program may leave hundreds of them.
    for what, words in sorted({(what, words) for what, words, _ in left}):
        ids = [job_id[:SHORT] for its_what, its_words, job_id in left if (its_what, its_words) == (what, words)]
        how = words.replace("ID", ids[0]) if len(ids) == 1 else words
        console.tell(f"{what}{'' if sent else ', if it was sent before Ctrl-C'}: {' '.join(ids)} ({how})")


def _what_goes_on(job: JobRun | GroupState) -> str:
    """Say whether a job waits or runs. Until its host has said why it waits, it may already run."""
    if job.waits_here:
        return f"waits in this program until {job.host} takes it"
    waits = job.state == PENDING and job.reason and not job.unanswered
    return f"{'stays in the queue of' if waits else 'keeps running on'} {job.host}"


def _tell_of_end(job: JobRun | GroupState) -> None:
    """Say that a job was sent and has ended, and how to get its result, once no call waits for it."""
    how = _how_to_get(job).replace("ID", job.id[:SHORT])
    console.warn(f"{job.id} was sent, and has ended: {job.status} ({how})")


def _parting_words(job: JobRun | GroupState) -> str:
    return _parting.get(job) or f"{_how_to_get(job)}, clusterfn cancel ID ends it"


def _how_to_get(job: JobRun | GroupState) -> str:
    """Say how to get what the job is run for: its value, or what a command prints and its exit status."""
    return f"clusterfn {'result ID gets its value' if job.has_value else 'attach ID follows it to its exit status'}"


def finish_sending() -> None:
    """Send what has not left this machine, as long as any of it moves and until Ctrl-C; then drop it."""
    moved, moved_at, unsent = -1, time.monotonic(), _all_unsent()
    with contextlib.suppress(KeyboardInterrupt), console.Status(began=0.0) as status:
        while unsent and time.monotonic() - moved_at < STALLED_S:
            before, moved = moved, sum(sending.moved for _, sending in unsent)
            moved_at = time.monotonic() if moved != before else moved_at
            far = [(job, sending.amounts()) for job, sending in unsent]
            shown = "; ".join(f"{amounts}, {job.id[:SHORT]} to {job.host}" for job, amounts in far if amounts)
            status.show(f"sending (Ctrl-C cancels it): {shown}" if shown else "")
            time.sleep(_LOOK_S)
            unsent = _all_unsent()
    for job, _ in unsent:
        _stop(job)


def finish_submitting() -> None:
    """Wait for schedulers that take no jobs now: only this program can submit these jobs. Ctrl-C drops them."""
    with contextlib.suppress(KeyboardInterrupt), console.Status(began=0.0) as status:
        while waiting := _all_waiting_here():
            which = f"{waiting[0].id[:SHORT]} waits" if len(waiting) == 1 else f"{len(waiting)} jobs wait"
            status.show(f"{which} in this program until submitted (Ctrl-C drops them): {waiting[0].reason}")
            time.sleep(_LOOK_S)
    for job in _all_waiting_here():
        _stop(job)


def _all_waiting_here() -> list[JobRun | GroupState]:
    return [job for job in known_jobs() if job.waits_here]


def _all_unsent() -> list[tuple[JobRun | GroupState, Sending]]:
    return [(job, sending) for job in known_jobs() if (sending := _unsent(job)) is not None]


def _unsent(job: JobRun | GroupState) -> Sending | None:
    """Return its upload, if part of that has not left this machine."""
    sending = job.transfer
    return sending if isinstance(sending, Sending) and sending.unsent and not job.done() else None


def interrupted(job: JobRun | GroupState, on_interrupt: str, how: str = "result()") -> None:
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


def has_value(job: JobRun) -> bool:
    """Whether the value is on its way here, so that the function has ended."""
    receiving = job.transfer
    return receiving is not None and not isinstance(receiving, Sending) and receiving.moved > 0 and not job.done()


def leave_value(job: JobRun) -> None:
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


def _time_for_a_second() -> None:
    """Wait, and say so, for as long as a second Ctrl-C counts."""
    # Ctrl-C reaches only the main thread, so another one would wait in vain.
    if threading.current_thread() is not threading.main_thread():
        return
    with console.Status(began=0.0) as status:
        for left in range(_SECOND_INTERRUPT_S, 0, -1):
            status.show(f"waiting {left} s for {console.interrupt()} again")
            time.sleep(1.0)


def _stop(job: JobRun | GroupState) -> None:
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
