"""Has the host fail the items of a group that no element will run, with the reason that the scheduler gives.

Only the host publishes outcomes (`supervise.py bury`); only the verdict is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from clusterfn.bridge import layout
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.liveness import parse_conclusion
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.host_state import HostState
from clusterfn.scheduler.base import Evidence, SchedulerVerdict

_TIMEOUT_S = 600.0  # thousands of items
STOPPED = SchedulerVerdict(layout.CANCELLED, "the group was stopped on request", stage="queue")
WITHDRAWN = SchedulerVerdict(layout.CANCELLED, "the item was withdrawn before it started", stage="queue")
NEVER_BEGAN = SchedulerVerdict(layout.LOST, "the items were sent and never began", hint="group.retry_failed()")
_FORGOTTEN = SchedulerVerdict(
    layout.LOST, "the scheduler does not know the elements of the group any more, and they never began",
    hint="group.retry_failed()", stage="submit",
)  # fmt: skip


def verdict_of(last: Mapping[str, Any]) -> SchedulerVerdict:
    """The verdict on items that no element will run, from the outcome of the last element that died."""
    if not last:
        return SchedulerVerdict(layout.LOST, "the elements of the group ended before the item began")
    evidence, hint = tuple(last.get("evidence") or ()), last.get("hint") or ""
    return SchedulerVerdict(last["kind"], last.get("message") or "", evidence, hint, last.get("stage") or "start")


def fail_unfinished_items(
    session: HostState, group: GroupState, folder: str, bridge: str, verdict: SchedulerVerdict
) -> Reply[Completed]:
    """Give every item without an element this verdict, in the journal of the element in that folder; does not wait."""
    asked = json.dumps(verdict.as_dict()).encode()
    reply = session.supervise("bury", folder, bridge=bridge, stdin=asked, timeout_s=_TIMEOUT_S)
    reply.add_done_callback(lambda answer: _on_answer(session, group, answer))
    return reply


def _on_answer(session: HostState, group: GroupState, reply: Reply[Completed]) -> None:
    error = reply.exception()
    if error is None and reply.result(0).rc != 0:
        try:
            parse_conclusion(reply.result(0), session.host, group.folder, "group")
        except ClusterfnError as unable:
            error, unable.job = unable, group.id
    if error is not None:
        group.on_refused(error if isinstance(error, ClusterfnError) else cannot_conclude_error(group, str(error)))


def cannot_conclude_error(group: GroupState, message: str) -> ClusterfnError:
    """The error of a group whose host cannot conclude it."""
    return ClusterfnError(message, host=group.host, job=group.id, stage="supervisor")


def explain_unstarted(session: HostState, scheduler_id: str, then: Callable[[SchedulerVerdict], object]) -> None:
    """Find out from the scheduler why elements that have not begun never will, and pass the verdict on."""
    if not scheduler_id:
        then(_FORGOTTEN)
        return
    scheduler = session.scheduler
    command = scheduler.evidence_command(scheduler_id.partition("_")[0])

    def answered(reply: Reply[Completed]) -> None:
        said = b"" if reply.exception() else reply.result(0).out + reply.result(0).err
        then(scheduler.explain(Evidence(said.decode("utf-8", "replace"), "", scheduler_id)) or _FORGOTTEN)

    session.connection.run(command, unset=scheduler.unset).add_done_callback(answered)
