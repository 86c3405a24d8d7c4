"""Run a job, or an element of a group, to its published end.

job.sh starts it in the host's old Python as `supervise.py run JOB`; `commands` has the supervisor's other commands.
It must never unpickle anything or import the user's code. Imports within functions are of what a plain job does without
and would wait for: they double the time to the start of its worker.
"""

import errno
import os
import signal
import time

from ..layout import EXIT_PUBLISHED, EXIT_QUEUED, EXIT_RETURNED, HOST_DISK, LOOKED, LOOKED_SOON, RETURNED, TAKERS
from . import process_tree, retries, worker_process
from .attempt import Attempt, claim
from .classify_exit import lost_supervisor
from .job import JobFolder
from .run import AttemptRun, run_through
from .verdict import Fenced, Verdict, print_state, say
from .watch import EndWatch, Signals, SupervisorWatchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .worker_process import WaitingWorker

_EXIT_LEFT_TO_AFTER = 143
_SETTLE_S = 2.0  # who was fenced looks for that every second
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DAY_S, _SOON_S = 86400.0, 60.0


def run(folder: str, status: "Optional[str]" = None, early: "Optional[WaitingWorker]" = None) -> int:
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
    job.early = early
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
    if job.held is not None:
        job.held.release()
        if ended != EXIT_QUEUED or not signals.told_to_end():  # a machine that goes down starts no job again
            launch.revive_spooler(job.root, job.spec["bridge"])
    elif job.element is None and os.path.isdir(job.path(TAKERS)):
        from .takers import Takers

        Takers(job).tell()
    remove_expired(job)
    process_tree.wake(os.getppid())  # the function may have stopped job.sh, which holds the job until it has ended
    return ended


def remove_expired(job: JobFolder) -> None:
    """Remove what was due at the look before this one: once a day, and more often for jobs that are kept for less.

    A clock that jumps ahead for a moment makes everything look old. So something is removed only once two looks, in
    order and a day apart, agree on it. For jobs that are kept for less than a day, the looks are as far apart as that.
    """
    keep_s = job.spec["keep_days"] * _DAY_S
    node_root: "str" = (job.spec.get("building") or {}).get("node_root") or ""
    due = _note_look(os.path.join(job.root, LOOKED), _DAY_S)
    due_soon = _note_look(os.path.join(job.root, LOOKED_SOON), max(keep_s, _SOON_S)) if keep_s < _DAY_S else None
    due_on_node = None
    if node_root and os.path.isdir(node_root):
        due_on_node = _note_look(os.path.join(node_root, LOOKED), _DAY_S)
    if (due, due_soon, due_on_node) == (None, None, None):
        return
    from . import expire  # with shutil and subprocess it takes a quarter of the start, for one job a day

    if due is not None:
        expire.tidy(job.root, due, keep_s)
    if due_soon is not None:
        expire.tidy(job.root, due_soon, keep_s, longest_s=_DAY_S)
    if due_on_node is not None:
        expire.clean_node(job, node_root)


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
    if job.held is not None:
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
    return _see_through(job, attempt, EndWatch(job, attempt, signals, watchdog=watchdog))


def _end_early(job: JobFolder) -> None:
    """End the worker of a job that does not run here now, and what its interpreter has started."""
    if job.early is not None:
        job.early.dismiss()
        process_tree.end_all_but(tuple)


def _lost(job: JobFolder, attempt: Attempt, status: str) -> "dict[str, Any]":
    verdict = lost_supervisor(status)
    if job.element is not None:  # items count their own tries
        return {"message": verdict.facts["message"], "by": "after"}
    used = 1 + attempt.retries_used()
    return retries.lost(attempt.number - 1, verdict, used, retries.allowed(job))


def _lost_with_node(job: JobFolder, attempt: Attempt) -> "Optional[dict[str, Any]]":
    if not job.spec.get("requeue"):
        return None
    from . import requeue  # few jobs need it

    return requeue.conclude_loss(job, attempt)


def _see_through(job: JobFolder, attempt: Attempt, watch: EndWatch) -> int:
    if job.element is not None:
        from .items import see_through

        return see_through(job, attempt, watch)
    job.failed_cards = retries.cards_of(attempt.outcomes_before())
    while True:
        work, verdict, alive = _run(job, attempt, watch)
        if work is not None and job.spec.get("requeue"):
            ended = _requeue(attempt, work, verdict, alive)
            if ended is not None:
                return ended
        if work is None or not retries.passes(verdict) or attempt.retries_used() >= retries.allowed(job):
            return _conclude(attempt, work, verdict, alive)
        following = _follow(attempt, work, verdict)
        if following is None:
            print_state(attempt.number, (attempt.outcome() or {}).get("kind"), False)
            return EXIT_RETURNED
        attempt, watch = following, watch.of(following)


def _run(job: JobFolder, attempt: Attempt, watch: EndWatch) -> "tuple[Optional[AttemptRun], Verdict, bool]":
    """One attempt to its end: its verdict, and whether that is the worker's own last word."""
    runner: "type[AttemptRun]" = AttemptRun
    if job.tasks != (1, 1):
        from .nodes import Head

        runner = Head
    work: "Optional[AttemptRun]" = None
    try:
        attempt.prepare()
        work = runner(job, attempt, watch)
        verdict, alive = run_through(work)
        return work, verdict, alive
    except OSError as error:
        if error.errno not in _FULL:
            raise
        where = error.filename or attempt.folder
        message = "nothing can be written on the host any more: %s (%s)" % (os.strerror(error.errno), where)
        hint = "make room there, or point root: to another file system"
        if work is not None:
            work.end_tree()
        return work, Verdict(HOST_DISK, message, stage="start", hint=hint), False


def _follow(attempt: Attempt, work: "AttemptRun", verdict: Verdict) -> "Optional[Attempt]":
    """End an attempt that is to be retried; return the next one, None if another has concluded or taken the job.

    The next one exists before this one says that it was followed: a process that dies in between leaves a job that can
    be concluded.
    """
    job, cards, following = attempt.job, work.cards(), attempt.following()
    if following is not None:
        used, where = 1 + attempt.retries_used(), retries.where(verdict, work.where())
        told = retries.in_words(attempt.number, where, verdict.facts["message"], used, retries.allowed(job))
        attempt.event("note", message=told)
        if not work.publish(retries.superseding(verdict, told, following.number, cards)):
            standing = attempt.outcome() or {}
            following.supersede(attempt.number if standing.get("final") else standing["superseded_by"])
            following = None
    work.finish()
    work.release()
    work.close()
    job.failed_cards += retries.suspects(verdict, cards)
    return following


def _requeue(attempt: Attempt, work: "AttemptRun", verdict: Verdict, alive: bool) -> "Optional[int]":
    """End an attempt after which the job is started again, by its scheduler or its queue; return the exit code.

    None if `requeue=` does not name what ended it. The scheduler or the queue is asked before the attempt says so:
    the next process takes over from one that dies in between.
    """
    from . import requeue  # few jobs need it

    job, cause = attempt.job, requeue.cause_of(attempt.job, verdict)
    if not cause:
        return None
    count, of = 1 + requeue.used(attempt, cause), requeue.allowed(job, cause)
    if count > of:
        return _conclude(attempt, work, requeue.exhausted(verdict, cause, of), alive)
    requeued = requeue.superseding(attempt.number, verdict, cause, count, of)
    told = requeued.facts["message"]
    work.end_tree()
    try:
        status = requeue.start_again(job, verdict, told)
    except requeue.Refused as refused:
        work.notes.append("the job was not requeued: %s" % refused)
        return _conclude(attempt, work, verdict, alive)
    attempt.event("note", message=told)
    won = work.publish(requeued)
    work.release()
    print_state(attempt.number, (attempt.outcome() or {}).get("kind"), won)
    return status


def _conclude(attempt: Attempt, work: "Optional[AttemptRun]", verdict: Verdict, alive: bool) -> int:
    """Publish the verdict; if it is the worker's own report, before what it left is ended."""
    if work is None:
        won = attempt.publish(verdict.kind or "", dict(verdict.facts, by="supervisor", node=attempt.job.node))
        return _exit(attempt, verdict, won)
    if verdict.kind is None:
        work.release()
        say(verdict.facts["message"])
        return EXIT_RETURNED if isinstance(verdict, Fenced) else _EXIT_LEFT_TO_AFTER
    won = work.publish(verdict)
    if alive:
        work.finish()
    work.release()
    return _exit(attempt, verdict, won)


def _exit(attempt: Attempt, verdict: Verdict, won: bool) -> int:
    kind = verdict.kind if won else (attempt.outcome() or {}).get("kind")
    print_state(attempt.number, kind, won)
    return EXIT_RETURNED if kind == RETURNED or not won else EXIT_PUBLISHED
