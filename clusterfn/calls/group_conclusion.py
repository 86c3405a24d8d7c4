"""Has the host conclude the items of a group that nobody will run: asks the scheduler why, and says what stands there.

Only the host concludes (`supervise.py bury`); nothing is decided here but what it is to be told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterfn.bridge import layout
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.liveness import standing
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.host_state import Session
from clusterfn.scheduler.base import Evidence, Verdict

_BURY_S = 600.0  # thousands of items
STOPPED = Verdict(layout.CANCELLED, "the group was stopped on request", stage="queue")
WITHDRAWN = Verdict(layout.CANCELLED, "the item was withdrawn before it started", stage="queue")
NEVER_BEGAN = Verdict(layout.LOST, "the items were sent and never began", hint="group.retry_failed()")
_FORGOTTEN = Verdict(
    layout.LOST, "the scheduler does not know the elements of the group any more, and they never began",
    hint="group.retry_failed()", stage="submit",
)  # fmt: skip


def verdict_of(last: Mapping[str, Any]) -> Verdict:
    """What is to be said of items that nobody will run, after the outcome of the last element that died."""
    if not last:
        return Verdict(layout.LOST, "the elements of the group ended before the item began")
    evidence, hint = tuple(last.get("evidence") or ()), last.get("hint") or ""
    return Verdict(last["kind"], last.get("message") or "", evidence, hint, last.get("stage") or "start")


def bury(session: Session, group: GroupState, folder: str, bridge: str, verdict: Verdict) -> Reply[Completed]:
    """Give every item that nobody has this verdict, in the journal of the element of that folder; does not wait."""
    asked = json.dumps(verdict.as_dict()).encode()
    reply = session.supervise("bury", folder, bridge=bridge, stdin=asked, timeout_s=_BURY_S)
    reply.add_done_callback(lambda answer: _buried(session, group, answer))
    return reply


def _buried(session: Session, group: GroupState, reply: Reply[Completed]) -> None:
    error = reply.exception()
    if error is None and reply.result(0).rc != 0:
        try:
            standing(reply.result(0), session.host, group.folder, "group")
        except ClusterfnError as unable:
            error, unable.job = unable, group.id
    if error is not None:
        group.on_refused(error if isinstance(error, ClusterfnError) else helpless(group, str(error)))


def helpless(group: GroupState, message: str, evidence: Sequence[str] = ()) -> ClusterfnError:
    """What is said where the host cannot conclude."""
    return ClusterfnError(message, host=group.host, job=group.id, stage="supervisor", evidence=evidence)


def explain(session: Session, scheduler_id: str, then: Callable[[Verdict], object]) -> None:
    """Why nobody will start the elements that have not begun, by the scheduler's own words."""
    if not scheduler_id:
        then(_FORGOTTEN)
        return
    scheduler = session.scheduler
    command = scheduler.evidence_command(scheduler_id.partition("_")[0])

    def told(reply: Reply[Completed]) -> None:
        said = b"" if reply.exception() else reply.result(0).out + reply.result(0).err
        then(scheduler.explain(Evidence(said.decode("utf-8", "replace"), "", scheduler_id)) or _FORGOTTEN)

    session.connection.run(command, unset=scheduler.unset).add_done_callback(told)
