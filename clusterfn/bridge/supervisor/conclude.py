"""Concludes from outside: for a supervisor that died (`after`, called by job.sh), or on request.

A request is for one job (`conclude`), or withdraws many that have not started, in one process (`withdraw`).

Both publish by the same link as a living supervisor, so that they win or lose, and end what the attempt left running.
They depend on nothing that a dead supervisor may have failed to write.
"""

import errno
import json
import os
import sys
import time

from .. import layout
from ..queue import launch, lease_names, tickets
from ..queue.lease import leases_of_kind
from . import classify_exit, dependencies, error_texts, notify, process_tree, retries, watch
from .attempt import Attempt, claim, final_attempt, read_events, read_usage, restore_owner_permissions, script_of
from .job import DamagedFile, JobFolder, dependencies_of
from .publish import last_bytes
from .text import how_to_correct, last_lines, masked, native, portable, shortened
from .verdict import Verdict, print_state, requested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

# The shell reports SIGKILL by this status.
_KILLED = "137"
# A message shows so many characters of a line that the user wrote.
_SHOWN = 80


def conclude_for_dead(folder: str, status: str) -> int:
    """Conclude for a supervisor of this submission that ended, or never began; or leave the job to another try of it.

    Args:
        folder: The job's.
        status: The supervisor's exit status as the shell says it; `setup:<status>:<line>`, `prolog:<status>:<line>` or
            `module:<name>` if a line before it failed.
    """
    restore_owner_permissions(folder)
    job = JobFolder(folder)
    # It died on its way out of admission, and waits. The ticket by which the spooler has started it goes before it
    # begins: one since is another.
    if (status.isdecimal() and _waits(job)) and (
        layout.TURN not in os.environ
        or any(Attempt(job, number).owner() == job.start for number in job.attempts())
    ):  # fmt: skip
        launch.revive_spooler(job.root, job.spec["bridge"])
        return layout.EXIT_RETURNED
    if claim(job) is not None:
        return layout.EXIT_RETURNED
    attempt = _latest_own(job) or Attempt.new(job)
    script = job.path(layout.SCRIPT)
    left = _sweep(lambda: sorted(set(process_tree.tagged(job.id, attempt.number) + process_tree.of_session(script))))
    verdict = _why(job, status)
    if status == _KILLED and job.element is None and verdict.kind == layout.LOST:
        verdict = _too_long(job, attempt) or verdict
    if attempt.outcome() is None:
        if retries.is_lost(verdict, status):
            # The same job.sh tries again: an element as long as each try brings some item to its end.
            element = job.element is not None
            tries_again = _has_begun_items(attempt) if element else retries.are_left(job, attempt.retries_used())
            if tries_again and attempt.follow():
                return layout.EXIT_AGAIN
        by = attempt.fence()
        if by is not None:
            attempt.supersede(by)
    complete = verdict.replace(
        kind=verdict.kind or layout.LOST, by="after", node=job.node, notes=left, stage=verdict.stage or "supervisor",
        usage=read_usage(attempt.path(layout.USAGE)), evidence=_evidence(job, attempt),
    )  # fmt: skip
    won = attempt.publish(complete)
    notify.tell_end(job.home)
    return _state(attempt, won)


def _has_begun_items(attempt: Attempt) -> bool:
    try:
        return os.stat(attempt.path(layout.JOURNAL)).st_size > 0
    except FileNotFoundError:
        return False


def _latest_own(job: JobFolder) -> "Optional[Attempt]":
    """The attempt of the supervisor that died: never one that a requeue started elsewhere by the same number."""
    for number in reversed(job.attempts()):
        attempt = Attempt(job, number)
        if attempt.owner() in (job.start, ""):
            return attempt
    return None


def _sweep(find: "Callable[[], list[int]]") -> "list[str]":
    names = [process_tree.name_of(pid) for pid in find()]
    left = process_tree.end(find, lambda: None)
    notes = ["ended after the supervisor's death: %s" % name for name in names]
    return notes + ["could not be ended: %s" % name for name in left]


def _why(job: JobFolder, status: str) -> Verdict:
    if job.cancelled():
        return watch.cancelled()
    found = job.scheduler.ending(job.path(layout.SCHEDULER_LOG))
    if found is not None:
        return found
    if not status.isdecimal():
        return _not_set_up(*status.split(":", 1))
    oom = job.scheduler.find_oom(last_bytes(job.path(layout.SCHEDULER_LOG)))
    if oom is not None:
        message, hint = error_texts.job_killed_for_memory(oom)
        return Verdict(layout.MEMORY, message, hint=hint)
    if status == str(errno.ENOSPC) or classify_exit.disk_is_full(job.folder):
        hint = "make room there, or point root: elsewhere"
        return Verdict(layout.HOST_DISK, "the disk of the host is full", hint=hint)
    return classify_exit.lost_supervisor(status)


def _too_long(job: JobFolder, attempt: Attempt) -> "Optional[Verdict]":
    """Return the verdict on a job whose supervisor hung past the time limit, and was killed for that by the kernel."""
    limit = job.spec["resources"]["time_s"]
    events = read_events(attempt)
    begun = [event["t"] for event in events if event["event"] == "starting"]
    stopped_s = sum(event.get("stopped_s", 0.0) for event in events if event["event"] == "resumed")
    if job.scheduler.has_nodes or limit is None or not begun or time.time() - begun[-1] - stopped_s < limit:
        return None
    found = watch.too_long(limit)
    return found.replace(message=found.message + "; its supervisor did not answer any more, and was killed")


def _not_set_up(what: str, which: str) -> Verdict:
    if what == "module":
        message = "the environment module %s could not be loaded on the machine that runs the job" % which
        hint = "look at `module avail` there; correct modules="
        return Verdict(layout.ENVIRONMENT, message, stage="environment", hint=hint)
    code, _, line = which.partition(":")
    lines = line.strip().splitlines()
    at = " at the line `%s%s`" % (shortened(lines[0], _SHOWN), " …" if len(lines) > 1 else "") if lines else ""
    return Verdict(
        layout.ENVIRONMENT,
        "%s: of the host failed with exit code %s%s; the function did not start" % (what, code, at),
        stage="environment",
        hint=how_to_correct(line, code, "%s: of the host in clusterfn.yml" % what),
    )


def _evidence(job: JobFolder, attempt: Attempt) -> "list[str]":
    secrets = list(job.secrets().values())
    for path in (attempt.path(layout.STDERR), attempt.path(layout.STDOUT), job.path(layout.SCHEDULER_LOG)):
        lines = masked(last_lines(last_bytes(path)), secrets)
        if lines:
            return lines
    return []


def conclude_on_request(folder: str) -> int:
    """Publish the verdict on stdin unless the job has concluded, or, with `withdraw`, has started."""
    restore_owner_permissions(folder)
    asked: "dict[str, Any]" = native(json.loads(sys.stdin.read()))
    job = JobFolder(folder)
    attempt, won = conclude_by(job, requested(asked), bool(asked.get("withdraw")))
    if attempt is not None:
        notify.tell_end(job.home)
        return _state(attempt, won)
    print_state(None, None, False)
    return layout.EXIT_RETURNED


def conclude_by(job: JobFolder, asked: Verdict, withdraw: bool = False) -> "tuple[Optional[Attempt], bool]":
    """Publish a verdict as `conclude_on_request`; the caller then tells those who asked for it that the job has ended.

    Returns:
        The attempt whose outcome stands, None if the job goes on, and whether the outcome is this verdict.
    """
    asked = watch.as_known(job, asked)
    is_gone = asked.kind in (layout.LOST, layout.NODE) and not withdraw
    if is_gone and not job.scheduler.has_nodes:
        # The job may be one that is requeued after a restart.
        launch.resume_after_restart(job.root, job.spec["bridge"])
    # The client has seen the end of the process that queued the job.
    if is_gone and (_waits(job) or _runs(job)):
        return None, False
    failed = None
    if asked.kind == layout.DEPENDENCY:
        failed = dependencies.Dependencies(job.root).failure(dependencies_of(job.spec))
        if failed is None:
            return None, False
    holder = claim(job, "concluded")
    if withdraw and holder is not None and not _withdrawn(job):
        return None, False
    if is_gone and holder is None and tickets.WAITS.encode() in last_bytes(job.path(layout.SCHEDULER_LOG)):
        # It was left to the queue, and neither waits there nor has begun.
        asked = asked.replace(
            message="the job has lost its place in the queue of this machine: its ticket was removed", stage="queue",
            evidence=["there is no %s" % os.path.join(tickets.Queue(job.root).folder, job.id)],
            hint="call again: nothing of it has run",
        )  # fmt: skip
    attempt = _open_attempt(job)
    won = False
    if attempt.outcome() is None:
        if failed is not None:
            verdict = dependencies.keep_exception(failed, attempt.path(layout.VALUE))
        else:
            verdict = asked.replace(evidence=asked.evidence or _evidence(job, attempt))
        # A scheduler's job ran on a node, and this is asked on the login node.
        node = None if job.scheduler.has_nodes else job.node
        won = attempt.publish(verdict.replace(by="conclude", node=node, usage=read_usage(attempt.path(layout.USAGE))))
    queue = tickets.Queue(job.root)
    if not job.scheduler.has_nodes and queue.of(job.id) is not None:
        queue.withdraw(job.id)
    # A job that no process has claimed has no processes.
    if won and not (withdraw and holder is None):
        _sweep(lambda: process_tree.tagged(job.id, attempt.number))
    elif withdraw and not won:
        # The job never began, and its supervisor, another client or this one has already said so.
        won = (attempt.outcome() or {}).get("kind") == asked.kind
    return attempt, won


def _waits(job: JobFolder) -> bool:
    """Whether it has a ticket in the queue of a machine without a scheduler."""
    return not job.scheduler.has_nodes and tickets.Queue(job.root).waits(job.id)


def _runs(job: JobFolder) -> bool:
    """Whether a process holds what it takes of a machine without a scheduler; it does so before its ticket goes."""
    # What the function of a job has forked holds its names too, even once job.sh is gone.
    if job.scheduler.has_nodes or script_of(job) == 0:
        return False
    seen = lease_names.HeldNames(leases_of_kind(job.spec["lease"]).binders(), 0)
    return any((each.uid, each.job) == (os.getuid(), job.id) for each in seen.running)


def _withdrawn(job: JobFolder) -> bool:
    """Whether the claimed job still waited for GPUs, and now never starts."""
    numbers = job.attempts()
    return bool(numbers) and Attempt(job, numbers[-1]).withdraw()


def _open_attempt(job: JobFolder) -> Attempt:
    """The attempt whose outcome decides: one that is final, else the last, else a new one after a preempted one."""
    final, numbers = final_attempt(job), job.attempts()
    if final is not None:
        return final
    last = Attempt(job, numbers[-1]) if numbers else None
    if last is None or last.outcome() is not None:
        return Attempt.new(job)
    return last


def _state(attempt: Attempt, won: bool) -> int:
    kind = (attempt.outcome() or {}).get("kind")
    print_state(attempt.number, kind, won)
    return layout.EXIT_RETURNED if kind == layout.RETURNED else layout.EXIT_PUBLISHED


def withdraw_jobs(root: str, host: str) -> int:
    """Withdraw the jobs of `{"verdict", "jobs"}` on stdin, and print a line of JSON for each that never starts.

    A job that was withdrawn before is one of those: the client may have missed the first answer, and must remove the
    job from the scheduler's queue. Leave out groups, jobs that have started or ended otherwise, jobs of another
    version's bridge or another host, and any whose folder is damaged or cannot be written.
    """
    asked: "dict[str, Any]" = native(json.loads(sys.stdin.read()))
    bridge = os.path.dirname(os.path.abspath(sys.argv[0]))
    withdrawn: "list[JobFolder]" = []
    for job_id in asked["jobs"]:
        folder = os.path.join(root, layout.JOBS, job_id)
        try:
            restore_owner_permissions(folder)
            job = JobFolder(folder)
            if not _is_for(job, job_id, host, bridge) or _has_ended_otherwise(job):
                continue
            _, won = conclude_by(job, requested(asked["verdict"]), withdraw=True)
        except (OSError, DamagedFile):
            continue
        if won:
            sys.stdout.write(json.dumps(portable({"id": job.id, "name": job.spec["name"]})) + "\n")
            sys.stdout.flush()
            withdrawn.append(job)
    # This comes last, because a receiver that does not answer takes half a minute for each job.
    for job in withdrawn:
        notify.tell_end(job.home)
    return 0


def _is_for(job: JobFolder, job_id: str, host: str, bridge: str) -> bool:
    """Whether this program may conclude it: a bridge that was sent again has another suffix."""
    versions = [os.path.basename(folder).partition("-")[0] for folder in (job.spec["bridge"], bridge)]
    return job.id == job_id and job.spec["host"] == host and len(set(versions)) == 1 and not job.spec.get("group")


def _has_ended_otherwise(job: JobFolder) -> bool:
    """Whether it has ended otherwise than by such a request."""
    final = final_attempt(job)
    outcome = final.outcome() if final is not None else None
    return outcome is not None and (outcome.get("kind"), outcome.get("by")) != (layout.CANCELLED, "conclude")
