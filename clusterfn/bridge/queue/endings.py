"""End jobs that wait and will never start: each by a process of its own, `supervise.py conclude`.

It does nothing if the job has begun, and is not awaited: what the function has left in the job's folder may keep it for
ever.
"""

import json
import os
import subprocess
import sys
import time

from ..layout import CLAIM, DEPENDENCY, EXIT_PUBLISHED, EXIT_RETURNED, LOST
from ..supervisor.verdict import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tickets import Queue

_CONCLUDES_S = 30.0
# A failed job may have hundreds of others that wait for its value; only so many processes publish their ends at once.
_AT_ONCE = 8
_AGAIN_S = 5.0


class JobEndings:
    """The ends that are being published.

    Args:
        queue: Its tickets.

    Attributes:
        jobs: Their jobs: the process, how long it may take, and the kind of the end.
    """

    def __init__(self, queue: "Queue") -> None:
        self.jobs: "dict[str, tuple[subprocess.Popen[Any], float, str]]" = {}
        self._queue = queue
        self._abandoned: "set[str]" = set()
        self._not_before: "dict[str, float]" = {}

    def may_end(self, job: str) -> bool:
        """Whether its end was not refused a moment ago."""
        return time.monotonic() >= self._not_before.get(job, 0.0)

    def end(self, job: str, folder: str, verdict: "dict[str, Any]") -> None:
        """Publish the end of a job; not now if too many are being published."""
        if len(self.jobs) < _AT_ONCE:
            self._conclude(job, folder, verdict)

    def give_up(self, job: str, why: str, has_started: bool) -> None:
        """End the job of a ticket that cannot be read, so that it learns why; the others keep waiting."""
        if job in self._abandoned:
            return
        self._abandoned.add(job)
        path = os.path.join(self._queue.folder, job)
        say("the ticket %s is damaged, and is set aside: %s" % (path, why))
        if has_started or not os.path.isdir(self._queue.folder_of(job)):
            self._set_aside(job)
            return
        message = "the job's ticket in the queue of this machine is damaged, so the job cannot start: %s" % path
        verdict = {"kind": LOST, "message": message, "stage": "queue", "evidence": [why], "hint": "call again"}
        self._conclude(job, self._queue.folder_of(job), verdict)

    def _set_aside(self, job: str) -> None:
        try:
            self._queue.set_aside(job)
        except OSError as error:
            # On a read-only disk the ticket stays where it is. This spooler does not look at it again.
            say("the ticket of %s could not be set aside: %s" % (job, error))

    def _conclude(self, job: str, folder: str, verdict: "dict[str, Any]") -> None:
        # This import costs as much as all the rest, and few jobs end here.
        import tempfile

        argv = [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0]), "conclude", folder]
        try:
            with open(os.devnull, "wb") as null, tempfile.TemporaryFile() as verdict_file:
                verdict_file.write(json.dumps(dict(verdict, withdraw=True)).encode())
                verdict_file.seek(0)
                process = subprocess.Popen(argv, stdin=verdict_file, stdout=null, cwd="/", start_new_session=True)
        except OSError as error:
            # The machine has no process or disk space left. The next turn of the spooler retries.
            say("the end of %s could not be published now: %s" % (job, error))
            self._abandoned.discard(job)
            return
        self.jobs[job] = process, time.monotonic() + _CONCLUDES_S, verdict["kind"]

    def collect(self) -> "list[subprocess.Popen[Any]]":
        """Take note of the ends that are published; return processes that were killed for taking too long."""
        killed = []
        for job, (process, until, kind) in list(self.jobs.items()):
            if process.poll() is None and time.monotonic() < until:
                continue
            if process.returncode is None:
                process.kill()
                killed.append(process)
            if process.returncode not in (EXIT_RETURNED, EXIT_PUBLISHED):
                say("the end of %s could not be published: look at %s" % (job, self._queue.folder_of(job)))
            del self.jobs[job]
            if job in self._abandoned:
                self._set_aside(job)
            elif kind != DEPENDENCY or os.path.exists(os.path.join(self._queue.folder_of(job), CLAIM)):
                self._queue.withdraw(job)
            else:
                # Its input may have a value after all, or the disk may be full. The job's own supervisor finds out.
                self._not_before[job] = time.monotonic() + _AGAIN_S
        return killed
