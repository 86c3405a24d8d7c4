"""A limit on how many calls of an `Executor` are at work: the others wait in this program, and are sent in their order.

A host has its own queue; this limit leaves room in it for others. What waits here ends with this program, so Python
waits at its exit until all of it is sent.
"""

from __future__ import annotations

import atexit
import collections
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.job_states import PENDING
from clusterfn.calls import console
from clusterfn.errors import Cancelled, ClusterfnError, SubmitError

if TYPE_CHECKING:
    from clusterfn.calls.job import Job
    from clusterfn.calls.job_tracker import Tracker

Send = Callable[[], None]


class WorkerLimit:
    """Sends at most so many calls at a time.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._going: set[Job[Any]] = set()
        self._waiting: collections.OrderedDict[Job[Any], tuple[Tracker, Send]] = collections.OrderedDict()
        self._changed = threading.Condition()
        self._awaits_exit = False

    def send(self, job: Job[Any], tracker: Tracker, send: Send) -> None:
        """Call `send` now, or when fewer calls are at work; an error of a later call of it is the job's."""
        with self._changed:
            now = len(self._going) < self.most and not self._waiting
            if now:
                self._going.add(job)
            else:
                self._waiting[job] = tracker, send
                tracker.hold_back(lambda: self._withdraw(job), f"max_workers={self.most}")
                if not self._awaits_exit:
                    self._awaits_exit = True
                    atexit.register(self.send_all)
        if now:
            try:
                send()
            except BaseException:  # Ctrl-C too: those that wait would never be sent
                self._ended(job)
                raise
        else:
            job.on_state(PENDING, f"not sent yet: {self.most} other calls are at work (max_workers={self.most})")
        job.add_done_callback(self._ended)

    def send_all(self) -> None:
        """Wait until no call waits to be sent. After Ctrl-C drop those that do."""
        try:
            with self._changed:
                if self._waiting:
                    count = len(self._waiting)
                    console.tell(f"{count} calls wait to be sent (max_workers={self.most}); Ctrl-C drops them")
                self._changed.wait_for(lambda: not self._waiting)
        except KeyboardInterrupt:
            with self._changed:
                dropped = list(self._waiting)
            for job in dropped:
                self._withdraw(job)
            console.warn(f"{len(dropped)} calls were not sent, and will not run")

    def _withdraw(self, job: Job[Any]) -> bool:
        """Take a call out of those that wait; false if it has been sent."""
        with self._changed:
            if self._waiting.pop(job, None) is None:
                return False
            self._changed.notify_all()
        job.on_refused(Cancelled("the call was withdrawn before it was sent", host=job.host, stage="submit"))
        return True

    def _ended(self, job: Any) -> None:
        """Send the next ones; runs in a thread that may wait for a host."""
        with self._changed:
            self._going.discard(job)
        while True:
            with self._changed:
                if not self._waiting or len(self._going) >= self.most:
                    return
                following, (tracker, send) = self._waiting.popitem(last=False)
                self._going.add(following)
                tracker.release()
            try:
                send()
            except BaseException as error:  # nobody else would hear of it: it ends the call that it concerns
                refused = error if isinstance(error, ClusterfnError) else SubmitError(repr(error))
                refused.host, refused.stage = following.host, refused.stage or "submit"
                following.on_refused(refused)
                if not isinstance(error, Exception):
                    raise
            finally:
                with self._changed:  # only now: Python may exit once nothing waits
                    self._changed.notify_all()
