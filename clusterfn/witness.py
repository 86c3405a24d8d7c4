"""Asks the host to conclude a job that ended without a word: a killed node, a restarted host, a job that can never
start.

A verdict from outside needs two witnesses: the scheduler (or the process table) says that the job is gone, and its
heartbeat is silent. Even then it is the host that publishes, by the same link as everybody, or finds that the job
has spoken. Called by `tracker`; its callbacks run on the connection's reader thread.
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from clusterfn import layout
from clusterfn.errors import ClusterfnError
from clusterfn.host import Completed, Reply
from clusterfn.scheduler.base import Evidence, JobState, Verdict

if TYPE_CHECKING:
    from clusterfn.job import Job
    from clusterfn.tracker import Tracker

SILENT_AFTER_S = 2 * layout.HEARTBEAT_S + 2
_LOG_TAIL = 4000
_watching: dict[int, Reply[Any]] = {}


def watch_heartbeat(tracker: Tracker, job: Job[Any]) -> None:
    """Ask for word whenever the present attempt's heartbeat stands still."""
    forget(tracker)
    path = posixpath.join(tracker.attempt_folder, layout.HEARTBEAT)
    _watching[id(tracker)] = tracker.connection.still(path, SILENT_AFTER_S, lambda: _silent(tracker, job))


def forget(tracker: Tracker) -> None:
    """The job has ended, or another attempt is followed."""
    watching = _watching.pop(id(tracker), None)
    if watching is not None:
        watching.cancel()


def scheduler_said(tracker: Tracker, job: Job[Any], state: JobState | None) -> None:
    """Conclude a pending job that can never start; look closer at one that the scheduler calls final."""
    hopeless = None if state is None else tracker.session.scheduler.hopeless(state)
    if hopeless is not None:
        conclude(tracker, hopeless)


def _silent(tracker: Tracker, job: Job[Any]) -> None:
    """The first witness has spoken; ask the second."""
    if tracker.ended:
        return
    tracker.session.watch.look_now()
    argv = tracker.session.scheduler.evidence_command(tracker.scheduler_id)
    tail = tracker.connection.run(["tail", "-c", str(_LOG_TAIL), tracker.log_path("scheduler")])
    asked = tracker.connection.run(argv, unset=tracker.session.scheduler.unset, after=[])
    asked.add_done_callback(lambda answer: _explain(tracker, answer, tail))


def _explain(tracker: Tracker, answer: Reply[Completed], tail: Reply[Completed]) -> None:
    try:
        said, log = answer.result(0), tail.result(0)
    except ClusterfnError:
        return
    text = said.out.decode("utf-8", "replace")
    evidence = Evidence(text, log.out.decode("utf-8", "replace"), tracker.scheduler_id)
    verdict = tracker.session.scheduler.explain(evidence)
    if verdict is not None and not tracker.ended:
        conclude(tracker, verdict)


def conclude(tracker: Tracker, verdict: Verdict) -> Reply[Completed]:
    """Ask the host to publish this verdict, unless the job has spoken."""
    session = tracker.session
    supervise = posixpath.join(session.bridge, layout.SUPERVISE)
    argv = [session.connection.facts.python, supervise, "conclude", tracker.folder]
    return session.connection.run(argv, stdin=json.dumps(verdict.as_dict()).encode(), unset=session.scheduler.unset)


def standing(answer: Completed) -> dict[str, Any]:
    """What `conclude` said now stands.

    Raises:
        ClusterfnError: It said nothing that can be read.
    """
    try:
        told: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    except (ValueError, IndexError):
        said = (answer.out + answer.err).decode("utf-8", "replace").splitlines()[-5:]
        raise ClusterfnError("the host could not conclude the job", stage="supervisor", evidence=said) from None
    return told
