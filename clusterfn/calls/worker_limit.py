"""A limit on how many calls of an `Executor` are in progress: the others wait in this program, in their order.

A host has its own queue; this limit leaves room in it for others. What waits here ends with this program, so Python
waits at its exit until all of it is sent.
"""

from __future__ import annotations

import atexit
import collections
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.job_states import PENDING, SHORT
from clusterfn.calls.job import Job, entry_of
from clusterfn.display import console
from clusterfn.errors import Cancelled, ClusterfnError, SubmitError

if TYPE_CHECKING:
    from clusterfn.calls.job_tracker import Tracker

Send = Callable[[], None]


class WorkerLimit:
    """Sends at most so many calls at a time.

    Calls are sent one after another, in their order: a later one may take the value of an earlier one. A thread sends
    those that waited, as the callbacks of a job must not wait for a host.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._going: set[Job[Any]] = set()
        self._waiting: collections.OrderedDict[Job[Any], tuple[Tracker, Send]] = collections.OrderedDict()
        self._changed = threading.Condition()
        # Whether a thread sends a call: the others wait for that, so that the calls keep their order.
        self._is_sending = False
        self._has_thread = False
        self._awaits_exit = False

    def send(self, job: Job[Any], tracker: Tracker, send: Send) -> None:
        """Call `send` now, or when fewer calls are in progress; then an error of it is the job's."""
        # A forked child has none of the threads, and its parent sends the calls that wait.
        if os.getpid() != self._pid:
            self._begin()
        entry_of(job).set_state(PENDING, f"not sent yet: {_calls(self.most)} in progress (max_workers={self.most})")
        job.add_done_callback(self._ended)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_sending)
            # Calls keep their order: even with room, a call waits behind those that already wait.
            if self._waiting or len(self._going) >= self.most:
                self._hold(job, tracker, send)
                return
            self._begin_sending(job)
        try:
            entry_of(job).set_state(PENDING)
            send()
        except BaseException:  # a handler of a signal may raise anything
            # After Ctrl-C too, the place of the call would stay taken.
            self._ended(job)
            raise
        finally:
            self._end_sending()

    def _begin_sending(self, job: Job[Any]) -> None:
        """Take a place for a call that this thread sends; `_changed` must be held."""
        self._going.add(job)
        self._is_sending = True

    def _end_sending(self) -> None:
        with self._changed:
            self._is_sending = False
            self._changed.notify_all()

    def _hold(self, job: Job[Any], tracker: Tracker, send: Send) -> None:
        self._waiting[job] = tracker, send
        tracker.hold_back(lambda: self._withdraw(job), f"max_workers={self.most}")
        if not self._awaits_exit:
            self._awaits_exit = True
            # The thread is a daemon, which would end with the program and leave calls unsent.
            atexit.register(self.send_all)
        if not self._has_thread:
            self._has_thread = True
            threading.Thread(target=self._send_waiting, name="clusterfn-limit", daemon=True).start()

    def send_all(self) -> None:
        """Send all that waits, each at its turn. After Ctrl-C drop what is left."""
        if os.getpid() != self._pid:
            return
        try:
            with self._changed:
                if self._waiting:
                    text = f"{_calls(len(self._waiting))} not sent yet (max_workers={self.most}); Ctrl-C drops"
                    console.tell(f"{text} {'them' if len(self._waiting) > 1 else 'it'}")
            # This thread sends calls as well: at exit, Python 3.12 starts no thread, and a callback would do the work
            # in the reader thread.
            while self._send_next():
                continue
            with self._changed:
                self._changed.wait_for(lambda: not self._is_sending)
        except KeyboardInterrupt:
            with self._changed:
                left = list(self._waiting)
            dropped = [job for job in left if self._withdraw(job)]
            console.warn(f"{_calls(len(dropped))} not sent, and will not run")

    def _send_waiting(self) -> None:
        while self._send_next(ends_thread=True):
            continue

    def _send_next(self, *, ends_thread: bool = False) -> bool:
        """Wait for room and send the next call; false if none waits.

        Args:
            ends_thread: Whether the caller ends if none waits: the next one that waits needs another thread.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or (len(self._going) < self.most and not self._is_sending))
            if not self._waiting:
                self._has_thread = self._has_thread and not ends_thread
                return False
            job, (tracker, send) = self._waiting.popitem(last=False)
            self._begin_sending(job)
        try:
            entry_of(job).set_state(PENDING)
            send()
        except BaseException as error:  # `send` may raise anything
            # The caller has continued, so the error belongs to the call.
            self._refuse(job, error)
            if not isinstance(error, Exception):
                raise
        finally:
            tracker.release()
            self._end_sending()
        return True

    def _refuse(self, job: Job[Any], error: BaseException) -> None:
        refused = error if isinstance(error, ClusterfnError) else SubmitError(repr(error))
        refused.host, refused.stage = job.host, refused.stage or "submit"
        console.warn(f"{job.id[:SHORT]} {job.name} was not sent: {refused.message}")
        entry_of(job).fail(refused)

    def _withdraw(self, job: Job[Any]) -> bool:
        """Take a call out of those that wait; false if it has been sent."""
        with self._changed:
            # A call that is being sent counts as sent, and is withdrawn as such.
            self._changed.wait_for(lambda: not self._is_sending)
            if self._waiting.pop(job, None) is None:
                return False
            self._changed.notify_all()
        entry_of(job).fail(Cancelled("the call was withdrawn before it was sent", host=job.host, stage="submit"))
        return True

    def _ended(self, job: Any) -> None:
        with self._changed:
            self._going.discard(job)
            self._changed.notify_all()


def _calls(count: int) -> str:
    return f"{count} calls are" if count != 1 else "1 call is"
