"""Recognizes jobs and groups whose folder is gone from their host: nothing of them can come any more."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

from clusterfn.errors import ClusterfnError

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import HostState


async def find_loss(session: HostState, folder: str, scheduler_name: str) -> ClusterfnError | None:
    """Ask the host for the folder of a job or group; return the error if it is not there.

    Args:
        scheduler_name: Its name in the scheduler's queue.

    Returns:
        None if the folder is there, or the host does not say.
    """
    try:
        (exists,) = await session.connection.have([folder])
    except (ClusterfnError, concurrent.futures.CancelledError):
        return None
    return None if exists else _error(session, folder, scheduler_name)


def _error(session: HostState, folder: str, scheduler_name: str) -> ClusterfnError:
    host, scheduler = session.host.name, session.scheduler
    by_hand = scheduler.cancel_by_hand(scheduler_name)
    queue = f"; if it is still in the queue of {scheduler.title}, run there: {by_hand}" if by_hand else ""
    return ClusterfnError(
        f"{host} has lost the job's files: its root was removed, or another file system is there",
        stage="supervisor", evidence=[f"there is no {folder}"],
        hint=f"check {session.root} on {host}, and call again{queue}",
    )  # fmt: skip
