"""Asks a host about jobs whose heartbeat has stopped: one question at a time, for all of them together.

A host that is slow to answer is asked no more for it. All of this runs in the loop of `clusterfn.hosts.loop`.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import posixpath
import re
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError, HostError, Unreachable
from clusterfn.hosts import loop
from clusterfn.scheduler.base import Evidence, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.conclusion import Conclusion
    from clusterfn.calls.queue_tracker import FollowedJob
    from clusterfn.hosts.connection import HostConnection
    from clusterfn.hosts.host_state import HostState

# One question names this many jobs: their paths are the words of a command, whose length is limited.
_AT_ONCE = 500
# Each of these is concluded by a process of its own on the host.
_CONCLUDED_AT_ONCE = 4
_LOG_TAIL = 4000
# The pause after a question that the host could not answer, for example because it took too long.
AGAIN_S = 15.0
_ID = re.compile(rf"/{layout.JOBS}/([0-9a-f]{{16}})(?=/|$)")


class _Gone(NamedTuple):
    """A job that may be gone: the submission that holds its claim, and what the scheduler says of that."""

    silent: Conclusion
    submission: str
    said: str


class SilentJobs:
    """The silent jobs of one host.

    Args:
        session: The host.
    """

    def __init__(self, session: HostState) -> None:
        # This object is a value of a WeakKeyDictionary: a strong reference to its key would keep both for ever.
        self._session = weakref.ref(session)
        self._waiting: dict[Conclusion, None] = {}
        self._is_asking = False

    def ask(self, silent: Conclusion) -> None:
        """Ask about the job of this, after the question that is open now. Any thread may call this."""
        loop.call(self._add, silent)

    def _add(self, silent: Conclusion) -> None:
        self._waiting[silent] = None
        if not self._is_asking:
            self._is_asking = True
            loop.begin(self._ask_all())

    async def _ask_all(self) -> None:
        """Ask about those that are silent, then about those that have fallen silent meanwhile."""
        try:
            while (session := self._session()) is not None and (silent := self._next(session)):
                await self._ask(session, silent)
        finally:
            self._is_asking = False

    def _next(self, session: HostState) -> list[Conclusion]:
        left = [each for each in self._waiting if not each.job.is_closed]
        most = _most(session)
        self._waiting = dict.fromkeys(left[most:])
        return left[:most]

    async def _ask(self, session: HostState, silent: list[Conclusion]) -> None:
        """Ask about these jobs, and have those concluded that are gone."""
        try:
            claimed = await _read_claims(session, silent)
            dead = await _ask_scheduler(session, claimed) if claimed else []
        except Unreachable:
            # The connection has ended.
            return
        except (ClusterfnError, concurrent.futures.CancelledError):
            if session.is_connected:
                # Nothing else may report that these jobs are gone, so they are asked about again.
                loop.begin(self._ask_later(silent))
            return
        left = collections.deque(dead)
        await asyncio.gather(*(_conclude_each(session, left) for _ in range(min(_CONCLUDED_AT_ONCE, len(left)))))

    async def _ask_later(self, silent: list[Conclusion]) -> None:
        """Ask again about jobs of which nothing else may say that they are gone."""
        await asyncio.sleep(AGAIN_S)
        for each in silent:
            self.ask(each)


def _most(session: HostState) -> int:
    return _AT_ONCE if session.scheduler.evidence_of_many else 1


async def _read_claims(session: HostState, silent: list[Conclusion]) -> list[tuple[Conclusion, str]]:
    """Return the jobs that a submission has claimed, with it: others of these have long ended."""
    claims = [posixpath.join(each.job.folder, layout.CLAIM) for each in silent]
    # With a second file, grep begins each line with the name of the file, even for a single claim.
    read = await session.connection.run(["grep", "-s", "", *claims, "/dev/null"])
    lines = read.out.decode("utf-8", "surrogateescape").splitlines()
    pairs = (line.rpartition(f"/{layout.CLAIM}:") for line in lines)
    by_folder = {folder: claim.strip() for folder, _, claim in pairs}
    submissions = [(each, _submission_of(each, by_folder.get(each.job.folder, ""))) for each in silent]
    return [(each, submission) for each, submission in submissions if submission]


def _submission_of(silent: Conclusion, claim: str) -> str:
    """Return the submission to ask about, "" if there is none; `claim` is what the claim of the job holds, if any."""
    job = silent.job
    submission = claim or job.scheduler_id
    job.scheduler_id = job.scheduler_id or submission
    if not submission and not job.is_closed:
        loop.begin(_conclude_unseen(silent))
    return submission


async def _conclude_unseen(silent: Conclusion) -> None:
    """Conclude a job without a claim or an id that no look by its name has found: it was never submitted."""
    job, message = silent.job, "the scheduler does not know the job, and it never started"
    try:
        if job.session.scheduler.knows_all:
            if await is_refused_elsewhere(job.connection, job.folder):
                return
        else:
            spec, message = posixpath.join(job.folder, layout.SPEC), "the job was sent but never started"
            if not (await job.connection.run(["find", spec, "-mmin", "+1"])).out:
                # A younger job may be about to start.
                return
            # So may one that waits in the agent of another program.
            if await may_start_later(job.session):
                return
    except (ClusterfnError, concurrent.futures.CancelledError):
        # The next missed heartbeat asks again.
        return
    await silent.conclude_or_give_up(
        SchedulerVerdict(layout.LOST, message, hint="call the function again", stage="submit", withdraw=True)
    )


async def is_refused_elsewhere(connection: HostConnection, folder: str) -> bool:
    """Whether a program has lately said that it will submit the job, which the scheduler refuses for now."""
    note = posixpath.join(folder, layout.REFUSED)
    notes = await connection.run(["find", note, "-mmin", f"-{layout.REFUSED_FOR_S / 60:.0f}"])
    return bool(notes.out)


async def may_start_later(session: HostState) -> bool:
    """Whether an agent on that machine has lately said that jobs wait in it for their turn to begin."""
    machine = posixpath.join(session.root, layout.MACHINES, session.connection.facts.machine)
    note = posixpath.join(machine, layout.STARTING)
    notes = await session.connection.run(["find", note, "-mmin", f"-{layout.STARTING_FOR_S / 60:.0f}"])
    return bool(notes.out)


def job_of(folder: str) -> str:
    """Return the id of the job whose folder this is, or whose element's; "" if the path has none."""
    return next(iter(_ID.findall(folder)), "")


def explain(job: FollowedJob, answer: str, log: str, submission: str) -> SchedulerVerdict | None:
    """Return what has ended a job, by what its scheduler says and its log; None if it may live."""
    return job.session.scheduler.explain(Evidence(answer, log, submission, job_of(job.folder)))


async def _ask_scheduler(session: HostState, claimed: list[tuple[Conclusion, str]]) -> list[_Gone]:
    """Ask the scheduler about these submissions; return those that may be gone."""
    scheduler, ids = session.scheduler, [submission for _, submission in claimed]
    answer = await session.connection.run(scheduler.evidence_command(*ids), unset=scheduler.unset)
    output = (answer.out + answer.err).decode("utf-8", "replace")
    # Where one question covers many jobs, the answer alone shows that most of them live. An answer about a single job
    # may need its log.
    together = _most(session) > 1
    return [
        _Gone(silent, submission, output)
        for silent, submission in claimed
        if not together or explain(silent.job, output, "", submission) is not None
    ]


async def _conclude_each(session: HostState, dead: collections.deque[_Gone]) -> None:
    """Have jobs concluded that are gone, one after another, until none is left."""
    while dead:
        silent, submission, output = dead.popleft()
        job = silent.job
        if job.is_closed:
            continue
        try:
            tail = await session.connection.run(["tail", "-c", str(_LOG_TAIL), job.log_path("scheduler")])
            log = tail.out.decode("utf-8", "replace")
        except (HostError, concurrent.futures.CancelledError):
            log = ""
        verdict = explain(job, output, log, submission)
        if verdict is not None and not job.is_closed:
            await silent.conclude_or_give_up(verdict)


_of_hosts: weakref.WeakKeyDictionary[Any, SilentJobs] = weakref.WeakKeyDictionary()


def of_host(session: HostState) -> SilentJobs:
    """Return the silent jobs of a host."""
    jobs = _of_hosts.get(session)
    return jobs if jobs is not None else _of_hosts.setdefault(session, SilentJobs(session))
