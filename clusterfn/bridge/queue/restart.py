"""Requeue the jobs that a restart of this machine has interrupted, if their `requeue=` says so.

While such a job runs, the ticket with which it would wait is kept in another folder than that of the queue. After a
restart, whatever looks at the queue next moves it there: a call, `clusterfn jobs`, or `supervise.py queue`.
"""

import os

from ..layout import INTERRUPTED
from ..supervisor.attempt import Attempt, release_claim
from ..supervisor.job import DAMAGED, JobFolder
from ..supervisor.process_tree import boot_id
from ..supervisor.verdict import say
from . import machine, tickets
from .lease import admission_lock, leases_of_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REASON = "the machine was restarted"


def remember(root: str, ticket: "dict[str, Any]") -> None:
    """Keep this ticket of a job that begins."""
    _kept(root).write(ticket)


def forget(root: str, job: str) -> None:
    """Remove it: the job has ended, or waits."""
    _kept(root).remove(job)


def requeue_interrupted(root: str) -> bool:
    """Put each job into the queue that ran when this machine was restarted; once, even if several processes try.

    Returns:
        Whether there was one.
    """
    kept, boot, found = _kept(root), boot_id(), False
    for job in kept.names():
        fields = kept.fields(job)
        if fields is None or fields["boot"] == boot:
            continue
        lock = admission_lock(leases_of_kind(fields["lease"]))
        try:
            fields = kept.fields(job)  # again: another process may have done it, and the job may run by now
            if fields is not None and fields["boot"] != boot:
                _requeue(root, fields)
                kept.remove(job)
                found = True
        except FileNotFoundError:  # it was removed
            kept.remove(job)
        except DAMAGED as error:  # its folder holds something else, or cannot be read now: the others are requeued
            say("the interrupted job %s was not requeued: %s" % (job, error))
        finally:
            if lock is not None:
                lock.close()
    return found


def _requeue(root: str, fields: "dict[str, Any]") -> None:
    job = JobFolder(fields["folder"])
    outcomes = [Attempt(job, number).outcome() for number in job.attempts()]
    if job.cancelled() or any(outcome is not None and outcome["final"] for outcome in outcomes):
        return
    release_claim(job)  # a ticket counts only where no claim is
    now = machine.now_ns()
    tickets.Queue(root).write(dict(fields, submitted=now, reason=_REASON, queue_timeout_s=None))  # it has begun
    tickets.record_event(root, tickets.TICKET, job.id, asked=fields["asked"], submitted=now, reason=_REASON)


def _kept(root: str) -> tickets.Queue:
    kept = tickets.Queue(root)
    kept.folder = os.path.join(machine.folder(root), INTERRUPTED)
    return kept
