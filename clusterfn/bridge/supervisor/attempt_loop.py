"""Run an attempt and, after a failure that passes, the next one: the only loop over attempts that `retries=` allows.

A job and an item of a group differ in what is written of an attempt, and where: `JobLoop` of `main` publishes outcomes,
`ItemLoop` of `items` writes lines of a journal.
"""

import os

from ..layout import HOST_DISK
from .publish import FULL
from .run import AttemptRun, run_through
from .verdict import AttemptEnded, Verdict, concluded_by_another

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, TypeVar

    from .attempt import WholeAttempt
    from .job import JobFolder
    from .watch import EndWatch

    T = TypeVar("T")


class AttemptLoop:
    """The attempts of one job, or of one item of a group, that one supervisor sees through.

    Attributes:
        attempt: The one that runs, or ran last.
        work: Its run; None if the disk has no room for its files, or another process has the job now.
    """

    attempt: "WholeAttempt"

    def __init__(self, job: "JobFolder", watch: "EndWatch") -> None:
        self.job = job
        self.watch = watch
        self.work: "Optional[AttemptRun]" = None

    def run(self) -> "tuple[Verdict, bool]":
        """Run attempts until one has ended that no other follows; nothing is written of its end yet.

        Returns:
            How it ended, and whether its worker has reported that itself. After any other end nothing of it runs.
        """
        while True:
            verdict, alive = self._run_attempt()
            if self.work is None or not self.job.spec.get("retries"):
                return verdict, alive
            # This import is late, because few jobs have retries.
            from . import retries

            if not (retries.passes(verdict) and retries.are_left(self.job, self.attempt.retries_used())):
                return verdict, alive
            gpus = self.job.held.uuids
            following = self._leave(self.work, self.follow, verdict, alive)
            if following is None:
                self.work = None
                return concluded_by_another(), False
            self.job.failed_gpus += retries.suspects(verdict, gpus)
            self.turn_to(following)

    def _run_attempt(self) -> "tuple[Verdict, bool]":
        self.work = None
        try:
            self.attempt.prepare()
            self.work = self._runner()(self.job, self.attempt, self.watch)
            return run_through(self.work)
        except OSError as error:
            if self.work is not None:
                self.work.end_tree()
            if error.errno not in FULL:
                raise
            return nothing_can_be_written(error, self.attempt.folder), False

    def _runner(self) -> "Callable[[JobFolder, WholeAttempt, EndWatch], AttemptRun]":
        if self.job.tasks == (1, 1):
            return AttemptRun
        # This import is late, because few jobs have several tasks.
        from .nodes import Head

        return Head

    def follow(self, work: AttemptRun, verdict: Verdict) -> "Optional[WholeAttempt]":
        """Write that another attempt follows, and return that; None if another process has the job now."""
        raise NotImplementedError

    def turn_to(self, following: "WholeAttempt") -> None:
        """Go on with the attempt that follows."""
        self.attempt = following

    def describe(self, number: int, verdict: Verdict) -> str:
        """Say why an attempt is followed by another, and on which GPUs it failed, or else on which node."""
        from . import retries

        place = self.job.held.in_words() or self.job.node
        used, place = 1 + self.attempt.retries_used(), retries.where(verdict, place)
        return retries.in_words(number, place, verdict.message, used, retries.allowed(self.job))

    def end(self, work: AttemptRun, verdict: Verdict, alive: bool) -> bool:
        """Write how the last attempt ended, and end what its worker has left; False if another end is written."""
        return self._leave(work, self.write, verdict, alive)

    def write(self, work: AttemptRun, verdict: Verdict) -> bool:
        """Write how the last attempt ended; False if another end is written."""
        return work.publish(verdict)

    def _leave(
        self, work: AttemptRun, write: "Callable[[AttemptRun, Verdict], T]", verdict: Verdict, alive: bool
    ) -> "T":  # fmt: skip
        try:
            written = write(work, verdict)
            if alive:
                work.finish()
            return written
        except (OSError, AttemptEnded):
            # Nothing is written, so no other process ends what it has left running.
            work.end_tree()
            raise
        finally:
            self.close(work)

    def close(self, work: AttemptRun) -> None:
        """Give back what the attempt had."""
        self.watch.stop_clock()
        work.release()
        work.close()


def nothing_can_be_written(error: OSError, folder: str) -> Verdict:
    """Return the verdict on a job or an element for whose files the disk has no room."""
    message = "nothing can be written on the host any more: %s (%s)" % (
        os.strerror(error.errno or 0), error.filename or folder,
    )  # fmt: skip
    hint = "make room there and call again, or point root: to another file system"
    return Verdict(HOST_DISK, message, stage="start", hint=hint)
