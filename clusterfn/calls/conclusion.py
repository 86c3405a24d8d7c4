"""Has a host end jobs, or items of a group, that do not end by themselves, and publish an outcome for each.

Some have left none: `conclude_or_give_up`. Those that do not end on request are killed: `end_if_stuck`. The host
publishes an outcome by the same link as the job itself would, or finds that the job has published its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import posixpath
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import printable
from clusterfn.config.host_text import reading
from clusterfn.errors import ClusterfnError, HostDiskFull, Unreachable
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.rpc.frames import error_of
from clusterfn.scheduler.base import SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.calls.queue_place import QueuePlace
    from clusterfn.calls.run import Run
    from clusterfn.config.spec import Host
    from clusterfn.hosts.connection import Completed, Reply
    from clusterfn.hosts.host_state import HostState

# A group may have thousands of items.
_GROUP_TIMEOUT_S = 600.0
STOPPED = SchedulerVerdict(layout.CANCELLED, "the group was stopped on request", stage="queue")
WITHDRAWN_ITEM = SchedulerVerdict(layout.CANCELLED, "the item was withdrawn before it started", stage="queue")
NEVER_BEGAN = SchedulerVerdict(layout.LOST, "the items were sent but never started", hint="group.retry_failed()")
WITHDRAWN_JOB = SchedulerVerdict(
    layout.CANCELLED, "the job was withdrawn before it started", stage="queue", withdraw=True
)
# After a request to stop, a job gets the first time to end itself. It gets the second under a scheduler, which takes
# some seconds of its own.
_ENDS_ITSELF_S, _KILLED_AFTER_S = 3.0, 8.0


LookAgain = Callable[["Run", float], Coroutine[Any, Any, None]]


def ask(run: Run, verdict: SchedulerVerdict) -> Reply[Completed]:
    """Ask the host to publish this verdict, unless the job has an outcome; `parse_conclusion` reads the answer."""
    run.hurry()
    request = json.dumps(verdict.as_dict()).encode()
    # Only the host concludes: a client that concluded by itself could contradict a supervisor that is still alive.
    return run.at.host.bridge.supervise("conclude", run.folder, bridge=run.at.bridge, stdin=request)


def conclude_and_cancel(run: Run, verdict: SchedulerVerdict, look_again: LookAgain) -> None:
    """Have this published, and the job taken out of the queue; if it has begun meanwhile it continues.

    Does nothing while the host has not answered that before: each look at its scheduler may ask for it.

    Args:
        look_again: Looks, after so many seconds, whether the run is still to be concluded.
    """
    # The outcome of the job may end the program, and the scheduler must be asked before that.
    exit_flush.await_at_exit(loop.start(_conclude_and_cancel(run, verdict, look_again)))


async def _conclude_and_cancel(run: Run, verdict: SchedulerVerdict, look_again: LookAgain) -> None:
    if run.heartbeat.is_cancelling:
        return
    run.heartbeat.is_cancelling = True
    try:
        published = await conclude_or_give_up(run, verdict, look_again)
        has_begun = published is None or published.get("attempt", "") is None
        if not has_begun:
            run.queue.cancel()
    finally:
        run.heartbeat.is_cancelling = False


async def conclude_or_give_up(run: Run, verdict: SchedulerVerdict, look_again: LookAgain) -> Mapping[str, Any] | None:
    """Have this verdict published, unless the job has an outcome; return which one is published now.

    Returns:
        None without an answer, {} if the host could not do it. The next missed heartbeat asks again, or the job is
        given up: once the disk was full for a minute, or after two failures as the bridge or its folder is gone.
    """
    published: Mapping[str, Any] | None = None
    try:
        answer = await ask(run, verdict)
        published = {}
        published = parse_conclusion(answer, run.at.host.settings, run.folder)
    except (Unreachable, concurrent.futures.CancelledError):
        return None
    except ClusterfnError as error:
        await _retry_or_give_up(run, error, look_again)
    else:
        run.heartbeat.failed = 0
    return published


async def _retry_or_give_up(run: Run, error: ClusterfnError, look_again: LookAgain) -> None:
    pauses_s = layout.ROOM_PAUSES_S if isinstance(error, HostDiskFull) else (0.0,)
    run.heartbeat.failed += 1
    failed = run.heartbeat.failed
    if run.is_closed or failed > len(pauses_s) + 1:
        return
    if failed <= len(pauses_s):
        # The bridge itself may be missing on the host: without this the next try would not send it again.
        run.at.host.contents.distrust()
        loop.begin(look_again(run, pauses_s[failed - 1]))
        return
    lost = await find_loss(run.at.host, run.folder, run.at.scheduler_name)
    if not run.is_closed:
        run.give_up(lost or error)


def parse_conclusion(answer: Completed, host: Host, folder: str, what: str = "job") -> dict[str, Any]:
    """Read which outcome is published now, from the answer to `ask`.

    Raises:
        HostDiskFull: The host had no disk space to write it.
        ClusterfnError: The answer cannot be read.
    """
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


async def fail_unfinished_items(
    host: HostState, group: GroupState, folder: str, bridge: str, verdict: SchedulerVerdict
) -> None:
    """Give every item without an element this verdict, in the journal of the element in that folder."""
    request = json.dumps(verdict.as_dict()).encode()
    answer = await host.bridge.supervise("bury", folder, bridge=bridge, stdin=request, timeout_s=_GROUP_TIMEOUT_S)
    if answer.rc != 0:
        parse_conclusion(answer, host.settings, group.folder, "group")


async def find_loss(host_state: HostState, folder: str, scheduler_name: str) -> ClusterfnError | None:
    """Ask the host for the folder of a job or group; return the error if it is gone, as nothing of it can come then.

    Args:
        scheduler_name: Its name in the scheduler's queue.

    Returns:
        None if the folder is there, or the host does not say.
    """
    try:
        (exists,) = await host_state.connection.have([folder])
    except (ClusterfnError, concurrent.futures.CancelledError):
        return None
    if exists:
        return None
    host, scheduler = host_state.settings.name, host_state.scheduler
    by_hand = scheduler.cancel_by_hand(scheduler_name)
    queue = f"; if it is still in the queue of {scheduler.title}, run there: {by_hand}" if by_hand else ""
    return ClusterfnError(
        f"{host} has lost the job's files: its root was removed, or another file system is there",
        stage="supervisor",
        evidence=[f"there is no {folder}"],
        hint=f"check {host_state.root} on {host}, and call again{queue}",
    )


async def end_if_stuck(
    place: QueuePlace,
    is_over: Callable[[], bool],
    on_left: Callable[[str], object],
    look: Callable[[], Awaitable[None]],
) -> None:
    """Have the host end a job or group, some seconds after it was asked to stop, if its own processes have not done so.

    Args:
        place: Its own in the queue.
        is_over: Whether it has ended.
        on_left: Takes the names of processes that cannot be ended.
        look: Awaited once a scheduler was asked to kill it: nothing of it may be left that could say how it ended.
    """
    kill = place.host.scheduler.cancel_command(place.scheduler_name, kill=True)
    await asyncio.sleep(_KILLED_AFTER_S if kill else _ENDS_ITSELF_S)
    if is_over():
        return
    try:
        if kill:
            await place.run(kill)
            left = []
        else:
            left = _left_by(await place.host.bridge.supervise("end", place.folder))
    except (ClusterfnError, concurrent.futures.CancelledError) as error:
        # The host cannot be asked any more.
        if not place.host.is_connected:
            return
        problem = error.message if isinstance(error, ClusterfnError) else str(error)
        left = [] if kill else [problem]
    if kill:
        await look()
    if left:
        on_left(f"could not be ended: {', '.join(left)}")


def _left_by(answer: Completed) -> list[str]:
    """Return the processes that `supervise.py end` could not end."""
    try:
        return [printable(str(name)) for name in json.loads(answer.out.splitlines()[-1])["left"]]
    except (ValueError, IndexError, KeyError, TypeError):
        # The program may not have begun, for example because the disk is full.
        return []
