"""Run an attempt and, after a failure that passes, the next one: the only loop over attempts that `retries=` allows.

A job and an item of a group differ in what is written of an attempt, and where: `JobLoop` publishes outcomes, and
`ItemLoop` of `items` writes lines of a journal. Imports within functions are of what a plain job does without.
"""

import os
import time

from ..layout import DISK_ERRORS, HOST_DISK, LOST, OUTCOME, PROCESSES, SUPERSEDED
from . import process_tree
from .attempt import SETTLE_S, Attempt, claim
from .classify_exit import lost_supervisor
from .run import AttemptRun, run_through
from .verdict import AttemptEnded, Verdict, concluded_by_another, exit_code, log_line, print_state
from .watch import EndWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, TypeVar

    from .attempt import WholeAttempt
    from .job import JobFolder
    from .watch import Signals

    T = TypeVar("T")


class AttemptLoop:
    """The attempts of one job, or of one item of a group, that one supervisor sees through.

    Attributes:
        attempt: The one that runs, or ran last.
        work: Its run; None if the disk has no room for its files, or another process has the job now.
    """

    attempt: "WholeAttempt"

    def __init__(self, job: "JobFolder", watch: "EndWatch") -> None:
        self.job, self.watch = job, watch
        self.work: "Optional[AttemptRun]" = None

    def run(self) -> "tuple[Verdict, bool]":
        """Run attempts until one has ended that no other follows; nothing is written of its end yet.

        Returns:
            How it ended, and whether its worker has reported that itself. After any other end nothing of it runs.
        """
        while True:
            verdict, alive = self._run_attempt()
            if self.work is None or not (self.job.spec.get("retries") or self.job.spec.get("restarts")):
                return verdict, alive
            from . import retries

            if not (retries.passes(verdict) and retries.are_left(self.job, self.attempt.retries_used())):
                return retries.unless_restarted(self.work, verdict, alive)
            gpus = self.job.held.uuids
            following = self._leave(self.work, self.follow, verdict, alive)
            if following is None:
                self.work = None
                return concluded_by_another(), False
            self.job.failed_gpus += retries.suspects(verdict, gpus)
            self.turn_to(following)

    def _run_attempt(self) -> "tuple[Verdict, bool]":
        self.work = None
        runner: "Callable[[JobFolder, WholeAttempt, EndWatch], AttemptRun]" = AttemptRun
        if self.job.tasks != (1, 1):
            from .nodes import Head

            runner = Head
        try:
            self.attempt.prepare()
            self.work = runner(self.job, self.attempt, self.watch)
            return run_through(self.work)
        except OSError as error:
            if self.work is not None:
                self.work.end_tree()
            if error.errno not in DISK_ERRORS:
                raise
            return nothing_can_be_written(error, self.attempt.folder), False

    def follow(self, work: AttemptRun, verdict: Verdict) -> "Optional[WholeAttempt]":
        """Write that another attempt follows, and return that; None if another process has the job now."""
        raise NotImplementedError

    def turn_to(self, following: "WholeAttempt") -> None:
        """Go on with the attempt that follows."""
        self.attempt = following

    def describe(self, number: int, verdict: Verdict) -> str:
        """Say why an attempt is followed by another, and on which GPUs it failed, or else on which node."""
        from . import retries

        # What came from another node says so itself.
        own = not verdict.node and verdict.kind != LOST
        place = self.job.held.in_words() or self.job.node
        used = 1 + self.attempt.retries_used()
        return retries.in_words(number, place if own else "", verdict.message, used, retries.allowed(self.job))

    def end(self, work: AttemptRun, verdict: Verdict, alive: bool) -> bool:
        """Write how the last attempt ended, and end what its worker has left; False if another end is written."""
        return self._leave(work, self.write, verdict, alive)

    def write(self, work: AttemptRun, verdict: Verdict) -> bool:
        """Write how the last attempt ended; False if another end is written."""
        return work.publish(verdict)

    def _leave(
        self, work: AttemptRun, write: "Callable[[AttemptRun, Verdict], T]", verdict: Verdict, alive: bool
    ) -> "T":
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
    # This import is late, because disks are seldom full.
    from ..agent.files import disk_left

    path, why = str(error.filename or folder), os.strerror(error.errno or 0)
    if disk_left(os.path.join(folder, OUTCOME))["files"] == 0:
        why += ": its inodes are used up"
    message = "nothing can be written on the host any more: %s (%s)" % (why, path)
    hint = "make room there and call again, or point root: to another file system"
    return Verdict(HOST_DISK, message, stage="start", hint=hint)


class JobLoop(AttemptLoop):
    """The attempts of a job, each in a folder of its own, until one has an outcome that is final."""

    attempt: Attempt

    def __init__(self, job: "JobFolder", attempt: Attempt, watch: EndWatch) -> None:
        super().__init__(job, watch)
        self.attempt = attempt

    def see_through(self) -> int:
        """Run the job to its outcome, or until it waits to be started again; return the exit code of the process."""
        # Those are GPUs on which the job failed before this attempt, for a cause that may be theirs.
        retried = [outcome.get("retried") or {} for outcome in self.attempt.outcomes_before()]
        self.job.failed_gpus = [uuid for retry in retried for uuid in retry.get("cards") or ()]
        verdict, alive = self.run()
        if self.work is not None and self.job.spec.get("requeue"):
            status = self._requeue(self.work, verdict, alive)
            if status is not None:
                return status
        return self._conclude(verdict, alive)

    def follow(self, work: AttemptRun, verdict: Verdict) -> "Optional[Attempt]":
        """Begin the next attempt, then publish that it follows: a process that dies in between can be concluded."""
        following = self.attempt.following()
        if following is None:
            return None
        from . import retries

        message = self.describe(self.attempt.number, verdict)
        self.attempt.event("note", message=message)
        if work.publish(retries.superseding(verdict, message, following.number, self.job.held.uuids)):
            return following
        standing = self.attempt.outcome() or {}
        following.supersede(self.attempt.number if standing.get("final") else standing["superseded_by"])
        return None

    def turn_to(self, following: "WholeAttempt") -> None:
        """Go on with the next attempt, for which this process then looks and beats."""
        super().turn_to(following)
        self.watch = self.watch.of(following)

    def _requeue(self, work: AttemptRun, verdict: Verdict, alive: bool) -> "Optional[int]":
        """End an attempt after which the job is started again, by its scheduler or its queue; return the exit code.

        None if `requeue=` does not name what ended it. The scheduler or the queue is asked before the attempt says so:
        the next process takes over from one that dies in between.
        """
        from . import retries

        job, attempt = self.job, self.attempt
        cause = retries.cause_of(job, verdict)
        if not cause:
            return None
        count, of = 1 + retries.requeues_used(attempt, cause), retries.requeues_allowed(job, cause)
        if count > of:
            return self._conclude(retries.exhausted(verdict, of), alive)
        requeued = retries.requeued(attempt.number, verdict, cause, count, of)
        work.end_tree()
        status, refusal = retries.start_again(job, verdict, requeued.message)
        if refusal:
            work.notes.append("the job was not requeued: %s" % refusal)
            return self._conclude(verdict, alive)
        attempt.event("note", message=requeued.message)
        won = self.end(work, requeued, alive=False)
        print_state(attempt.number, (attempt.outcome() or {}).get("kind"), won)
        return status

    def _conclude(self, verdict: Verdict, alive: bool) -> int:
        """Publish the verdict; if it is the worker's own report, before what it left is ended."""
        work, attempt = self.work, self.attempt
        if verdict.kind is None:
            if work is not None:
                work.release()
            log_line(verdict.message)
            return exit_code(verdict, False)
        if work is None:
            won = attempt.publish(verdict.replace(by="supervisor", node=self.job.node))
        else:
            won = self.end(work, verdict, alive)
        print_state(attempt.number, verdict.kind if won else (attempt.outcome() or {}).get("kind"), won)
        return exit_code(verdict, won)


def begin_attempt(
    job: "JobFolder", status: "Optional[str]", signals: "Signals"
) -> "Optional[tuple[Attempt, EndWatch]]":
    """Claim a job that is admitted, and begin its next attempt; None if another process has the job, or had it.

    Args:
        status: Of the supervisor before this one, as for `main.run`.
    """
    holder = claim(job)
    job.held.confirm()
    if holder is not None:
        log_line("the job is claimed by submission %s; this is %s: nothing to do" % (holder, job.submission))
        print_state(None, None, False)
        return None
    process_tree.note_process(job.path(PROCESSES), process_tree.SUPERVISOR, os.getpid())
    attempt = Attempt.new(job)
    by = attempt.fence(_known_end(job, attempt, status))
    if by is not None:
        attempt.supersede(by)
        print_state(by, None, False)
        return None
    if attempt.overtook and job.element is None:
        time.sleep(SETTLE_S)
    return attempt, EndWatch(job, attempt, signals)


def _known_end(job: "JobFolder", attempt: Attempt, status: "Optional[str]") -> "Optional[Verdict]":
    """Return how the attempt before this one ended, if its supervisor died or its node was lost; None otherwise."""
    if status is None and not job.spec.get("requeue"):
        return None
    from . import retries

    if status is None:
        return retries.conclude_loss(job, attempt)
    message = lost_supervisor(status).message
    # Items count their own tries.
    if job.element is not None:
        return Verdict(SUPERSEDED, message, by="after")
    message = retries.in_words(attempt.number - 1, "", message, 1 + attempt.retries_used(), retries.allowed(job))
    return Verdict(SUPERSEDED, message, retried={"kind": LOST, "cause": None, "cards": []}, by="after")
