"""Concludes from outside: for a supervisor that died (`after`, called by job.sh), or on request.

A request concludes a job (`conclude`), or ends one that was asked to stop and has not (`end`).

All publish by the same link as a living supervisor, so that they win or lose, and end what the attempt left running.
They depend on nothing that a dead supervisor may have failed to write.
"""

import errno
import json
import os
import signal
import sys
import time

from .. import layout
from ..queue import launch, lease_names, tickets
from ..queue.lease import Leases
from . import classify_exit, dependencies, notify, process_tree, retries, watch
from .attempt import Attempt, claim, claim_of, final_attempt, read_usage, restore_owner_permissions, script_of
from .job import JobFolder, dependencies_of
from .publish import last_bytes
from .text import how_to_correct, last_lines, masked, native, shortened
from .verdict import Verdict, print_state, requested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

# The shell reports SIGTERM by this status.
_TERMINATED = "143"
# A message shows so many characters of a line that the user wrote.
_SHOWN = 80
_ENDS_ITSELF_S = 3.0
_AFTER_S = 4.0
_DIES_S = 3.0
_LOOK_S = 0.05


def conclude_for_dead(folder: str, status: str) -> int:
    """Conclude for a supervisor of this submission that ended, or never began; or leave the job to another try of it.

    Args:
        status: The supervisor's exit status as the shell says it; `setup:<status>:<line>`, `prolog:<status>:<line>` or
            `module:<name>` if a line before it failed.
    """
    restore_owner_permissions(folder)
    job = JobFolder(folder)
    # It died on its way out of admission, and waits. The ticket by which the spooler has started it goes before it
    # begins: one since is another.
    if (status.isdecimal() and _waits(job)) and (
        layout.TURN not in os.environ or any(Attempt(job, number).owner() == job.start for number in job.attempts())
    ):
        launch.revive_spooler(job.root, job.spec["bridge"])
        return layout.EXIT_RETURNED
    if claim(job) is not None:
        return layout.EXIT_RETURNED
    # The attempt is that of the supervisor that died: never one that a requeue started elsewhere by the same number.
    latest = (Attempt(job, number) for number in reversed(job.attempts()))
    own = next((candidate for candidate in latest if candidate.owner() in (job.start, "")), None)
    attempt = own or Attempt.new(job)
    script = job.path(layout.SCRIPT)
    left = _sweep(lambda: sorted({*_processes(job, attempt.number), *process_tree.of_session(script)}))
    verdict = _why(job, status)
    if attempt.outcome() is None:
        # The supervisor died by itself, and not because the job was to end.
        if verdict.kind == layout.LOST and verdict.stage is None and status != _TERMINATED:
            # The same job.sh tries again: an element as long as each try brings some item to its end.
            element = job.element is not None
            tries_again = _has_begun_items(attempt) if element else retries.are_left(job, attempt.retries_used())
            if tries_again and attempt.follow():
                return layout.EXIT_AGAIN
        by = attempt.fence()
        if by is not None:
            attempt.supersede(by)
    verdict = verdict.replace(kind=verdict.kind or layout.LOST, stage=verdict.stage or "supervisor")
    usage = read_usage(attempt.path(layout.USAGE))
    evidence = _evidence(job, attempt)
    complete = verdict.replace(by="after", node=job.node, notes=left, usage=usage, evidence=evidence)
    won = attempt.publish(complete)
    notify.tell_end(job.home)
    return _state(attempt, won)


def _has_begun_items(attempt: Attempt) -> bool:
    return bool(last_bytes(attempt.path(layout.JOURNAL)))


def _sweep(find: "Callable[[], list[int]]") -> "list[str]":
    notes = ["ended after the supervisor's death: %s" % process_tree.name_of(pid) for pid in find()]
    left = process_tree.end(find, lambda: None)
    return notes + ["could not be ended: %s" % name for name in left]


def _why(job: JobFolder, status: str) -> Verdict:
    if job.cancelled():
        return watch.cancelled()
    found = job.scheduler.ending(job.path(layout.SCHEDULER_LOG))
    if found is not None and found.kind:
        return found
    if not status.isdecimal():
        return _not_set_up(*status.split(":", 1))
    oom = job.scheduler.find_oom(last_bytes(job.path(layout.SCHEDULER_LOG)))
    if oom is not None:
        message, hint = classify_exit.job_killed_for_memory(oom)
        return Verdict(layout.MEMORY, message, hint=hint)
    if status == str(errno.ENOSPC) or classify_exit.disk_is_full(job.folder):
        hint = "make room there, or point root: elsewhere"
        return Verdict(layout.HOST_DISK, "the disk of the host is full", hint=hint)
    return classify_exit.lost_supervisor(status)


def _not_set_up(what: str, which: str) -> Verdict:
    if what == "module":
        message = "the environment module %s could not be loaded on the machine that runs the job" % which
        hint = "look at `module avail` there; correct modules="
        return Verdict(layout.ENVIRONMENT, message, stage="environment", hint=hint)
    code, _, line = which.partition(":")
    lines = line.strip().splitlines()
    rest = " …" if len(lines) > 1 else ""
    at = " at the line `%s%s`" % (shortened(lines[0], _SHOWN), rest) if lines else ""
    message = "%s: of the host failed with exit code %s%s; the function did not start" % (what, code, at)
    hint = how_to_correct(line, code, "%s: of the host in clusterfn.yml" % what)
    return Verdict(layout.ENVIRONMENT, message, stage="environment", hint=hint)


def _evidence(job: JobFolder, attempt: Attempt) -> "list[str]":
    secrets = list(job.secrets().values())
    paths = (attempt.path(layout.STDERR), attempt.path(layout.STDOUT), job.path(layout.SCHEDULER_LOG))
    return next(filter(None, (masked(last_lines(last_bytes(path)), secrets) for path in paths)), [])


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
    is_gone = asked.kind in layout.GONE
    if is_gone and not job.scheduler.has_nodes:
        # The job may be one that is requeued after a restart.
        launch.resume_after_restart(job.root, job.spec["bridge"])
    # The client has seen the end of the process that queued the job, or nothing of a job that another program sent.
    if is_gone and (_waits(job) or _runs(job)):
        return None, False
    failed = None
    if asked.kind == layout.DEPENDENCY:
        failed = dependencies.Dependencies(job.root).failure(dependencies_of(job.spec))
        if failed is None:
            return None, False
    if is_gone and claim_of(job) == layout.CONCLUDED:
        # Another process has ended it, and is about to say why, unless that has died.
        _await_ends([job], _ENDS_ITSELF_S)
    holder = claim(job, layout.CONCLUDED)
    if withdraw and holder is not None:
        numbers = job.attempts()
        # It is claimed. It may still wait for GPUs, and then it never starts now.
        if not numbers or not Attempt(job, numbers[-1]).withdraw():
            return None, False
    if is_gone and holder is None and tickets.WAITS.encode() in last_bytes(job.path(layout.SCHEDULER_LOG)):
        # It was left to the queue, and neither waits there nor has begun.
        message = "the job has lost its place in the queue of this machine: its ticket was removed"
        evidence = ["there is no %s" % os.path.join(tickets.Queue(job.root).folder, job.id)]
        hint = "call again: nothing of it has run"
        asked = asked.replace(message=message, stage="queue", evidence=evidence, hint=hint)
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
        _sweep(lambda: _processes(job, attempt.number))
    elif withdraw and not won:
        # The job never began, and its supervisor, another client or this one has already said so.
        won = (attempt.outcome() or {}).get("kind") == asked.kind
    return attempt, won


def _waits(job: JobFolder) -> bool:
    """Whether it has a ticket in the queue of a machine without a scheduler."""
    return not job.scheduler.has_nodes and tickets.Queue(job.root).of(job.id) is not None


def _runs(job: JobFolder) -> bool:
    """Whether a process holds what it takes of a machine without a scheduler; it does so before its ticket goes."""
    # What the function of a job has forked holds its names too, even once job.sh is gone.
    if job.scheduler.has_nodes or script_of(job) == 0:
        return False
    # A script holds nothing while `setup:` runs.
    if process_tree.script_runs(job.path(layout.STARTED)):
        return True
    seen = lease_names.HeldNames(Leases().binders(), 0)
    return any((other.uid, other.job) == (os.getuid(), job.id) for other in seen.running)


def _open_attempt(job: JobFolder) -> Attempt:
    """The attempt whose outcome decides: one that is final, else the last, else a new one after a preempted one."""
    final = final_attempt(job)
    last = [Attempt(job, number) for number in job.attempts()[-1:]]
    if final is not None:
        return final
    return last[0] if last and last[0].outcome() is None else Attempt.new(job)


def _state(attempt: Attempt, won: bool) -> int:
    kind = (attempt.outcome() or {}).get("kind")
    print_state(attempt.number, kind, won)
    return layout.EXIT_RETURNED if kind == layout.RETURNED else layout.EXIT_PUBLISHED


def end_stuck(folder: str) -> int:
    """End a job that was asked to stop and has not, and print which of its processes could not be ended.

    Its supervisor may be stopped by a signal, or hang on a file system. It gets time to end the job itself, then job.sh
    gets it, and then this process concludes the job. What a scheduler runs is ended by the scheduler.
    """
    job = JobFolder(folder)
    parts = job.elements() if job.spec.get("group") else [job]
    parts = [] if job.scheduler.has_nodes else [part for part in parts if _is_open(part)]
    for part in parts:
        process_tree.send_signal(_script(part) + _supervisors(part), signal.SIGCONT)
    parts = _await_ends(parts, _ENDS_ITSELF_S)
    for part in parts:
        process_tree.send_signal(_supervisors(part), signal.SIGKILL)
    parts = _await_ends(parts, _AFTER_S)
    sys.stdout.write(json.dumps({"left": [name for part in parts for name in _kill(part)]}) + "\n")
    return 0


def _kill(part: JobFolder) -> "list[str]":
    """Kill all of it, and conclude it; return the names of processes that could not be ended."""
    process_tree.send_signal(_script(part) + _supervisors(part) + _concluders(part), signal.SIGKILL)
    if conclude_by(part, watch.cancelled())[0] is not None:
        notify.tell_end(part.home)
    attempt = max(part.attempts(), default=1)

    def living() -> "list[int]":
        return _processes(part, attempt) + _supervisors(part) + _concluders(part)

    return process_tree.end(living, lambda: None, _DIES_S)


def _is_open(job: JobFolder) -> bool:
    """Whether a process has it, and it has no outcome."""
    return os.path.exists(os.path.join(job.folder, layout.CLAIM)) and final_attempt(job) is None


def _await_ends(jobs: "list[JobFolder]", most_s: float) -> "list[JobFolder]":
    """Return those of which none has concluded by then."""
    until = time.monotonic() + most_s
    while jobs and time.monotonic() < until:
        time.sleep(_LOOK_S)
        jobs = [job for job in jobs if _is_open(job)]
    return jobs


def _script(job: JobFolder) -> "list[int]":
    """Return the job.sh that has claimed it, unless it is gone."""
    return [pid for pid in [script_of(job)] if pid]


def _supervisors(job: JobFolder) -> "list[int]":
    """Return the supervisor that has claimed it, unless it is gone."""
    pid = process_tree.noted_process(job.path(layout.PROCESSES), process_tree.SUPERVISOR)
    return [pid] if pid and process_tree.is_alive(pid) else []


def _concluders(job: JobFolder) -> "list[int]":
    """Return the processes of this user that conclude for its supervisor."""
    return process_tree.of_command(layout.SUPERVISE, "after", job.folder)


def _processes(job: JobFolder, attempt: int) -> "list[int]":
    """Return what is left of an attempt whose supervisor is gone, or stuck."""
    return process_tree.tagged(job.id, attempt) + process_tree.of_keeper(job.path(layout.PROCESSES))
