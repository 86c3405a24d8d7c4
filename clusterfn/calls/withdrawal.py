"""Withdraw many jobs of one host that have not started, fifty in each request; end what does not end on request.

Their scheduler is asked to remove as many with one command. What is withdrawn here ends as by `Job.cancel`; any job
about which there is more to say is left to that.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import printable
from clusterfn.config.host_text import reading, shaped
from clusterfn.errors import ClusterfnError, SubmitError
from clusterfn.hosts import exit_flush
from clusterfn.scheduler.base import SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.queue_tracker import QueueTracker
    from clusterfn.hosts.connection import Completed, Reply
    from clusterfn.hosts.host_state import HostState

WITHDRAWN = SchedulerVerdict(layout.CANCELLED, "the job was withdrawn before it started", stage="queue", withdraw=True)
# One request, and one command, names so many jobs.
_JOBS = 50
# The time for a look at the queue, which gives the numbers of its jobs.
_LOOK_S = 5.0
_TIMEOUT_S = 60.0
# A shared file system may need seconds for each job.
_WITHDRAWAL_S = 300.0
# After a request to stop, a job gets the first time to end itself. It gets the second under a scheduler, which takes
# some seconds of its own.
_ENDS_ITSELF_S, _KILLED_AFTER_S = 3.0, 8.0
_WITHDRAWN_JOBS = [{"id": str, "name": str}]


class WithdrawnJob(NamedTuple):
    """A job that never starts.

    Attributes:
        error: Why its scheduler may still list it; None if it does not.
    """

    id: str
    name: str
    error: ClusterfnError | None


class Withdrawal(NamedTuple):
    """Some jobs of a host that are to be withdrawn.

    Attributes:
        ids: Theirs, with all their digits.
        numbers: Those of all jobs in the scheduler's queue, by their names there, as far as they are known.
    """

    session: HostState
    ids: Sequence[str]
    numbers: Mapping[str, str]

    def request(self) -> list[WithdrawnJob]:
        """Withdraw them; return those that never start, and say nothing of the others.

        Raises:
            ClusterfnError: The host could not say.
        """
        session = self.session
        request = json.dumps({"verdict": WITHDRAWN.as_dict(), "jobs": list(self.ids)}).encode()
        answer = session.bridge.supervise(
            "withdraw", session.root, session.host.name, stdin=request, timeout_s=_WITHDRAWAL_S
        ).result(_WITHDRAWAL_S + _TIMEOUT_S)
        with reading(session.host.name, "which jobs it has withdrawn"):
            withdrawn = shaped([json.loads(line) for line in answer.out.splitlines()], _WITHDRAWN_JOBS)
            names = {each["id"]: each["name"] for each in withdrawn if each["id"] in self.ids}
        errors = self._remove_from_queue({job_id: layout.job_name(name, job_id) for job_id, name in names.items()})
        return [WithdrawnJob(job_id, name, errors.get(job_id)) for job_id, name in names.items()]

    def _remove_from_queue(self, names: Mapping[str, str]) -> dict[str, ClusterfnError]:
        """Have the scheduler remove them, by their numbers where these are known; return the errors by id.

        Args:
            names: Those that the jobs have in the queue, by id.
        """
        ids = {number: job_id for job_id, name in names.items() if (number := self.numbers.get(name))}
        left = names.keys() - ids.values() | {ids[number] for number in self._not_removed(list(ids))}
        commands = {job_id: self.session.scheduler.cancel_command(names[job_id]) for job_id in left}
        errors: dict[str, ClusterfnError] = {}
        replies = {job_id: self._run(argv) for job_id, argv in commands.items() if argv}
        for job_id, reply in replies.items():
            try:
                check_removed(self.session, names[job_id], reply.result(_TIMEOUT_S))
            except ClusterfnError as error:
                errors[job_id] = error
        return errors

    def _not_removed(self, numbers: list[str]) -> list[str]:
        """Have the scheduler remove these by one command; return those that it may have kept, one of which may fail."""
        argv = self.session.scheduler.withdraw_command(*numbers)
        if not argv:
            return numbers
        try:
            if self._run(argv).result(_TIMEOUT_S).rc == 0:
                return []
        except ClusterfnError:
            # The jobs are withdrawn again by their names, and that error is reported.
            return numbers
        half = len(numbers) // 2
        return self._not_removed(numbers[:half]) + self._not_removed(numbers[half:]) if half else numbers

    def _run(self, argv: Sequence[str]) -> Reply[Completed]:
        reply = self.session.connection.run(argv, unset=self.session.scheduler.unset)
        # The program waits for this after Ctrl-C too: a withdrawn job must not keep its place in the queue.
        exit_flush.await_at_exit(reply)
        return reply


def split(session: HostState, ids: Sequence[str]) -> list[Withdrawal]:
    """Return the withdrawals of these jobs, some in each, after a look at the queue for their numbers."""
    numbers: Mapping[str, str] = {}
    if session.scheduler.withdraw_command("1"):
        states = session.watch.last_look(_LOOK_S)
        numbers = {} if isinstance(states, str) else {name: seen.scheduler_id for name, seen in states.items()}
    return [Withdrawal(session, ids[first : first + _JOBS], numbers) for first in range(0, len(ids), _JOBS)]


def check_removed(session: HostState, scheduler_name: str, answer: Completed) -> None:
    """Raise a SubmitError if a scheduler has not removed a job from its queue."""
    if answer.rc != 0:
        raise SubmitError(
            "the job will not run, but its scheduler did not remove it from the queue", host=session.host.name,
            stage="queue", evidence=answer.err.decode("utf-8", "replace").splitlines(),
            hint=f"try again, or run on the host: {session.scheduler.cancel_by_hand(scheduler_name)}",
        )  # fmt: skip


async def end_if_stuck(
    tracker: QueueTracker, is_over: Callable[[], bool], on_left: Callable[[str], object],
    look: Callable[[], Awaitable[None]],
) -> None:  # fmt: skip
    """Have the host end a job or group, some seconds after it was asked to stop, if its own processes have not done so.

    Args:
        tracker: What follows it.
        is_over: Whether it has ended.
        on_left: Takes the names of processes that cannot be ended.
        look: Awaited once a scheduler was asked to kill it: nothing of it may be left that could say how it ended.
    """
    kill = tracker.session.scheduler.cancel_command(tracker.scheduler_name, kill=True)
    await asyncio.sleep(_KILLED_AFTER_S if kill else _ENDS_ITSELF_S)
    if is_over():
        return
    try:
        if kill:
            await tracker.run(kill)
            left = []
        else:
            left = _left_by(await tracker.session.bridge.supervise("end", tracker.folder))
    except (ClusterfnError, concurrent.futures.CancelledError) as error:
        # The host cannot be asked any more.
        if not tracker.session.is_connected:
            return
        left = [] if kill else [error.message if isinstance(error, ClusterfnError) else str(error)]
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
