"""Run a job, or an element of a group, to its published end.

job.sh starts it in the host's old Python as `supervise.py run JOB`; `commands` has the supervisor's other commands.
It must never unpickle anything or import the user's code. Imports within functions are of what a plain job does without
and would wait for: they double the time to the start of its worker.
"""

import os
import signal
import time

from ..layout import EXIT_QUEUED, EXIT_RETURNED, LOOKED, LOOKED_SOON, NOTIFY, SUPERSEDED, TAKERS
from . import process_tree, worker_process
from .attempt import Attempt, claim
from .attempt_loop import AttemptLoop
from .classify_exit import lost_supervisor
from .job import JobFolder
from .verdict import Verdict, exit_code, print_state, say
from .watch import EndWatch, Signals, SupervisorWatchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .attempt import WholeAttempt
    from .run import AttemptRun
    from .worker_process import WorkerProcess

# A process looks every second whether it is fenced.
_SETTLE_S = 2.0
_DAY_S, _SOON_S = 86400.0, 60.0


def run(folder: str, status: "Optional[str]" = None, early: "Optional[WorkerProcess]" = None) -> int:
    """Claim the job and see it through, in one attempt or in more.

    Args:
        folder: The job's.
        early: A worker that was started ahead.
        status: Of the supervisor before this one, which died and may be followed (`after`).
    """
    signals = Signals()
    worker_process.die_with_parent(signal.SIGUSR1, os.getppid())
    worker_process.become_subreaper()
    job = JobFolder(folder)
    job.workers = worker_process.WorkerSource(early)
    if not job.scheduler.has_nodes:
        from ..queue import admission, launch

        launch.resume_after_restart(job.root, job.spec["bridge"])
        try:
            job.held = admission.request_admission(job, signals, waits=status is None)
        except admission.NotNow as not_now:
            _end_early(job)
            say(str(not_now))
            return not_now.status
    ended = _claim_and_run(job, status, signals)
    if not job.scheduler.has_nodes:
        job.held.release()
        # A machine that goes down starts no job again.
        if ended != EXIT_QUEUED or not signals.asked_to_end():
            launch.revive_spooler(job.root, job.spec["bridge"])
    elif job.element is None and os.path.isdir(job.path(TAKERS)):
        from .takers import Takers

        Takers(job).tell()
    if os.path.exists(os.path.join(job.home, NOTIFY)):
        # This import is late, because few jobs notify a user. The job holds nothing any more.
        from .notify import tell_end

        tell_end(job.home)
    remove_expired(job)
    # The function may have stopped job.sh, whose end the job waits for.
    process_tree.wake(os.getppid())
    return ended


def remove_expired(job: JobFolder) -> None:
    """Remove what was due at the look before this one: once a day, and more often for jobs that are kept for less.

    A clock that jumps ahead for a moment makes everything look old. So something is removed only once two looks, in
    order and a day apart, agree on it. For jobs that are kept for less than a day, the looks are as far apart as that.
    """
    keep_s = job.spec["keep_days"] * _DAY_S
    due = _note_look(os.path.join(job.root, LOOKED), _DAY_S)
    due_soon = _note_look(os.path.join(job.root, LOOKED_SOON), max(keep_s, _SOON_S)) if keep_s < _DAY_S else None
    if due is None and due_soon is None:
        return
    # This import is late: with shutil and subprocess it takes a quarter of the start, for one job a day.
    from . import expire

    if due is not None:
        expire.tidy(job.root, due, keep_s)
    if due_soon is not None:
        expire.tidy(job.root, due_soon, keep_s, longest_s=_DAY_S)


def _note_look(stamp: str, apart_s: float) -> "Optional[float]":
    """Note a look; when the one before was, None if that is too recent to remove anything."""
    try:
        looked: "Optional[float]" = os.stat(stamp).st_mtime
    except FileNotFoundError:
        looked = None
    ahead = 0.0 if looked is None else looked - time.time()
    if looked is not None and abs(ahead) < apart_s:
        return None
    with open(stamp, "w"):
        os.utime(stamp)
    return looked if looked is not None and ahead < 0 else None


def _claim_and_run(job: JobFolder, status: "Optional[str]", signals: Signals) -> int:
    holder = claim(job)
    job.held.confirm()
    if holder is not None:
        _end_early(job)
        say("the job is claimed by submission %s; this is %s: nothing to do" % (holder, job.submission))
        print_state(None, None, False)
        return EXIT_RETURNED
    attempt = Attempt.new(job)
    by = attempt.fence(_lost(job, attempt, status) if status is not None else _lost_with_node(job, attempt))
    if by is not None:
        _end_early(job)
        attempt.supersede(by)
        print_state(by, None, False)
        return EXIT_RETURNED
    if attempt.overtook and job.element is None:
        time.sleep(_SETTLE_S)
    watchdog = None if job.scheduler.has_nodes else SupervisorWatchdog()
    watch = EndWatch(job, attempt, signals, watchdog=watchdog)
    if job.element is not None:
        from .items import see_through

        return see_through(job, attempt, watch)
    return JobLoop(job, attempt, watch).see_through()


def _end_early(job: JobFolder) -> None:
    """End the worker of a job that does not run here now, and what its interpreter has started."""
    if job.workers.dismiss_early():
        process_tree.end_all_but(tuple)


def _lost(job: JobFolder, attempt: Attempt, status: str) -> Verdict:
    verdict = lost_supervisor(status)
    # Items count their own tries.
    if job.element is not None:
        return Verdict(SUPERSEDED, verdict.message, by="after")
    # This import is late, because few supervisors die.
    from . import retries

    used = 1 + attempt.retries_used()
    return retries.lost(attempt.number - 1, verdict, used, retries.allowed(job))


def _lost_with_node(job: JobFolder, attempt: Attempt) -> "Optional[Verdict]":
    if not job.spec.get("requeue"):
        return None
    # This import is late, because few jobs have `requeue=`.
    from . import requeue

    return requeue.conclude_loss(job, attempt)


class JobLoop(AttemptLoop):
    """The attempts of a job, each in a folder of its own, until one has an outcome that is final."""

    attempt: Attempt

    def __init__(self, job: JobFolder, attempt: Attempt, watch: EndWatch) -> None:
        super().__init__(job, watch)
        self.attempt = attempt

    def see_through(self) -> int:
        """Run the job to its outcome, or until it waits to be started again; return the exit code of the process."""
        self.job.failed_gpus = _suspect_gpus(self.attempt)
        verdict, alive = self.run()
        if self.work is not None and self.job.spec.get("requeue"):
            status = self._requeue(self.work, verdict, alive)
            if status is not None:
                return status
        return self._conclude(verdict, alive)

    def follow(self, work: "AttemptRun", verdict: Verdict) -> "Optional[Attempt]":
        """Begin the next attempt, then publish that it follows: a process that dies in between can be concluded."""
        following = self.attempt.following()
        if following is None:
            return None
        # This import is late, as in the loop, which has decided that another attempt follows.
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

    def _requeue(self, work: "AttemptRun", verdict: Verdict, alive: bool) -> "Optional[int]":
        """End an attempt after which the job is started again, by its scheduler or its queue; return the exit code.

        None if `requeue=` does not name what ended it. The scheduler or the queue is asked before the attempt says so:
        the next process takes over from one that dies in between.
        """
        # This import is late, because few jobs have `requeue=`.
        from . import requeue

        job, attempt = self.job, self.attempt
        cause = requeue.cause_of(job, verdict)
        if not cause:
            return None
        count, of = 1 + requeue.used(attempt, cause), requeue.allowed(job, cause)
        if count > of:
            return self._conclude(requeue.exhausted(verdict, cause, of), alive)
        requeued = requeue.superseding(attempt.number, verdict, cause, count, of)
        work.end_tree()
        try:
            status = requeue.start_again(job, verdict, requeued.message)
        except requeue.Refused as refused:
            work.notes.append("the job was not requeued: %s" % refused)
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
            say(verdict.message)
            return exit_code(verdict, False)
        if work is None:
            won = attempt.publish(verdict.replace(by="supervisor", node=self.job.node))
        else:
            won = self.end(work, verdict, alive)
        print_state(attempt.number, verdict.kind if won else (attempt.outcome() or {}).get("kind"), won)
        return exit_code(verdict, won)


def _suspect_gpus(attempt: Attempt) -> "list[str]":
    """Return the GPUs on which the job failed before this attempt, for a cause that may be theirs."""
    retried = [outcome.get("retried") or {} for outcome in attempt.outcomes_before()]
    return [uuid for each in retried for uuid in each.get("cards") or ()]
