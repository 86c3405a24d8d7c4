"""Asks a host to publish the outcome of a job, or of items of a group, that has left none, and for why it has none.

Those that do not end on request are killed: `end_if_stuck`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import printable
from clusterfn.config.host_text import reading
from clusterfn.errors import ClusterfnError, SubmitError
from clusterfn.hosts.rpc.frames import error_of
from clusterfn.scheduler.base import Evidence, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.queue_place import QueuePlace
    from clusterfn.calls.run import Location, Run
    from clusterfn.config.spec import Host
    from clusterfn.hosts.connection import Completed, HostConnection, Reply
    from clusterfn.hosts.host_state import HostState

STOPPED = SchedulerVerdict(layout.CANCELLED, "the group was stopped on request", stage="queue")
WITHDRAWN_ITEM = SchedulerVerdict(layout.CANCELLED, "the item was withdrawn before it started", stage="queue")
# Another host runs it, whose group has this item next.
GIVEN_UP_ITEM = SchedulerVerdict(layout.CANCELLED, "the item was given up for another host", stage="queue")
NEVER_BEGAN = SchedulerVerdict(layout.LOST, "the items were sent but never started", hint="group.retry_failed()")
WITHDRAWN_JOB = SchedulerVerdict(
    layout.CANCELLED, "the job was withdrawn before it started", stage="queue", withdraw=True
)
_FORGOTTEN = SchedulerVerdict(
    layout.LOST, "the scheduler no longer knows the group's elements, and they never started",
    hint="group.retry_failed()", stage="submit",
)  # fmt: skip
# After a request to stop, a job gets the first time to end itself. It gets the second under a scheduler, which takes
# some seconds of its own.
_ENDS_ITSELF_S, _KILLED_AFTER_S = 3.0, 8.0


def ask(run: Run, verdict: SchedulerVerdict) -> Reply[Completed]:
    """Ask the host to publish this verdict, unless the job has an outcome; `parse_conclusion` reads the answer."""
    run.hurry()
    request = json.dumps(verdict.as_dict()).encode()
    # Only the host concludes: a client that concluded by itself could contradict a supervisor that is still alive.
    return run.at.host.bridge.supervise("conclude", run.folder, bridge=run.at.bridge, stdin=request)


def parse_conclusion(answer: Completed, host: Host, folder: str, what: str = "job") -> dict[str, Any]:
    """Read which outcome is published now, from the answer to `ask`; raise HostDiskFull if its host cannot write it."""
    output = (answer.out + answer.err).decode("utf-8", "replace").splitlines()[-5:]
    try:
        published: dict[str, Any] = dict(json.loads(answer.out.splitlines()[-1]))
    except (ValueError, TypeError, IndexError, RecursionError):
        log = posixpath.join(folder, layout.SCHEDULER_LOG)
        ended = f"exit status {answer.rc}" if answer.rc is not None else f"signal {answer.signal}"
        output = output or [f"its program printed nothing and ended with {ended}"]
        raise ClusterfnError(
            f"the host could not conclude the {what}", host=host.name, stage="supervisor", evidence=output, log=log,
            hint=f"read the log on {host.name}, and call again",
        ) from None  # fmt: skip
    if "full" in published:
        with reading(host.name, "why its disk is full"):
            raise error_of(host, published["full"])
    return published


async def find_loss(place: QueuePlace) -> ClusterfnError | None:
    """Return the error of a job or group whose folder is gone; None if it is there, or the host does not say."""
    try:
        if (await place.host.connection.have([place.folder]))[0]:
            return None
    except (ClusterfnError, concurrent.futures.CancelledError):
        return None
    host, scheduler = place.host.settings.name, place.host.scheduler
    by_hand = scheduler.cancel_by_hand(place.scheduler_name)
    queue = f"; if it is still in the queue of {scheduler.title}, run there: {by_hand}" if by_hand else ""
    return ClusterfnError(
        f"{host} has lost the job's files: its root was removed, or another file system is there",
        stage="supervisor",
        evidence=[f"there is no {place.folder}"],
        hint=f"check {place.host.root} on {host}, and call again{queue}",
    )


async def explain_unstarted(
    host: HostState, folder: str, scheduler_ids: Sequence[str], doubt: SubmitError | None
) -> SchedulerVerdict | None:
    """Ask why elements of these known submissions never will begin; None without an answer, or while one still may."""
    scheduler = host.scheduler
    verdict: SchedulerVerdict | None = _FORGOTTEN
    if doubt:
        message = f"the scheduler does not know the group's elements, and they never started: {doubt.message}"
        verdict = _FORGOTTEN._replace(message=message, evidence=tuple(doubt.evidence))
    try:
        for scheduler_id in scheduler_ids:
            answer = await host.connection.run(scheduler.evidence_command(scheduler_id), unset=scheduler.unset)
            text = (answer.out + answer.err).decode("utf-8", "replace")
            verdict = scheduler.explain(Evidence(text, "", scheduler_id, posixpath.basename(folder)))
            if verdict is None:
                return None
        return None if await is_refused_elsewhere(host.connection, folder) else verdict
    except (ClusterfnError, concurrent.futures.CancelledError):
        return None


async def is_refused_elsewhere(connection: HostConnection, folder: str) -> bool:
    """Whether a program has lately said that it will submit the job, which the scheduler refuses for now."""
    return await _is_written_lately(connection, posixpath.join(folder, layout.REFUSED), layout.REFUSED_FOR_S)


async def may_start_later(host: HostState) -> bool:
    """Whether an agent on that machine has lately said that jobs wait in it for their turn to begin."""
    machine = posixpath.join(host.root, layout.MACHINES, host.connection.facts.machine)
    return await _is_written_lately(host.connection, posixpath.join(machine, layout.STARTING), layout.STARTING_FOR_S)


async def _is_written_lately(connection: HostConnection, note: str, within_s: float) -> bool:
    return bool((await connection.run(["find", note, "-mmin", f"-{within_s / 60:.0f}"])).out)


def submission_of(claim: str) -> str:
    """Return by which submission a job is claimed; "" if it is concluded from outside, or has no claim."""
    return "" if claim.strip() == layout.CONCLUDED else claim.strip()


def explain(at: Location, answer: str, log: str, submission: str) -> SchedulerVerdict | None:
    """Return what has ended a job, by what its scheduler says and its log; None if it may live."""
    return at.host.scheduler.explain(Evidence(answer, log, submission, at.id))


async def end_if_stuck(
    place: QueuePlace,
    is_over: Callable[[], bool],
    on_left: Callable[[str], object],
    look: Callable[[], Awaitable[None]],
) -> None:
    """Have the host end a job or group, some seconds after it was asked to stop, if its own processes have not done so.

    `on_left` gets which processes cannot be ended.
    """
    kill = place.host.scheduler.cancel_command(place.scheduler_name, kill=True)
    await asyncio.sleep(_KILLED_AFTER_S if kill else _ENDS_ITSELF_S)
    if is_over():
        return
    if kill:
        with contextlib.suppress(ClusterfnError, concurrent.futures.CancelledError):
            await place.host.connection.run(kill, unset=place.host.scheduler.unset)
        # Nothing of it may be left that could say how it ended.
        if place.host.is_connected:
            await look()
        return
    try:
        left = _left_by(await place.host.bridge.supervise("end", place.folder))
    except (ClusterfnError, concurrent.futures.CancelledError) as error:
        left = [getattr(error, "message", str(error))] if place.host.is_connected else []
    if left:
        on_left(f"could not be ended: {', '.join(left)}")


def _left_by(answer: Completed) -> list[str]:
    try:
        return [printable(str(name)) for name in json.loads(answer.out.splitlines()[-1])["left"]]
    except (ValueError, IndexError, KeyError, TypeError):
        # The program may not have begun, for example because the disk is full.
        return []
