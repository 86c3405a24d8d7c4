"""Notices that a job or elements of a group died without an outcome, and has the host publish one.

Reasons are a killed node, a restarted host, an impossible request. A job is given up only on two signs. The scheduler
(or the process table) says that it is gone, and its heartbeat has stopped or never began. Even then the host publishes
the outcome, by the same link as the job itself would, or finds that the job has published its own.

The functions weigh the signs of one run, which its `Heartbeat` keeps. The conversations with the host run in the loop
of `clusterfn.hosts.loop`.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import posixpath
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import job_states, layout
from clusterfn.calls import conclusion
from clusterfn.errors import ClusterfnError, HostDiskFull, HostError, Unreachable
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.scheduler_watch import LookCounter
from clusterfn.scheduler.base import RUNNING, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.run import Run
    from clusterfn.hosts.host_state import HostState
    from clusterfn.scheduler.base import JobState

SILENT_AFTER_S = job_states.SILENT_AFTER_S
LOOKS = 2
# Another process may be submitting the job at this moment, which may take it more than a minute.
LOOKS_UNSEEN = 4
_BEGIN_S = 15.0
_ENDS_S, _ENDS_TIMES = 2.0, 8
# A controller is asked about one silent element no more often than this.
_EVIDENCE_S = 60.0
# One question names this many jobs: their paths are the words of a command, whose length is limited.
_AT_ONCE = 500
# Each of these is concluded by a process of its own on the host.
_CONCLUDED_AT_ONCE = 4
_LOG_TAIL = 4000
# The pause after a question that the host could not answer, for example because it took too long.
AGAIN_S = 15.0


def watch_heartbeat(run: Run) -> None:
    """Watch for the heartbeat of the present attempt to stop."""
    if run.heartbeat.watch is not None:
        run.heartbeat.watch.cancel()
    # With an outcome, the job has ended, and only the news of that is still on its way.
    run.heartbeat.watch = run.at.connection.still(
        run.at.path(layout.HEARTBEAT), SILENT_AFTER_S, lambda: _note_silence(run),
        unless=run.at.path(layout.OUTCOME), within=run.folder, on_gone=lambda: loop.begin(_give_up_if_lost(run)),
    )  # fmt: skip


def scheduler_said(run: Run, seen: JobState | None) -> None:
    """Count the looks at which the job could never start, or was gone: two in a row count.

    After a missed heartbeat one look counts, unless it says that the job runs.
    """
    heartbeat = run.heartbeat
    was_silent, heartbeat.is_silent = heartbeat.is_silent, False
    if was_silent and (seen is None or seen.phase != RUNNING):
        ask(run)
    looks = heartbeat.looks = heartbeat.looks or LookCounter()
    verdict = looks.count(seen, run.host)
    # The comparison is exact, so that later looks do not conclude the job again.
    if verdict is not None and looks.hopeless == LOOKS:
        conclude_and_cancel(run, verdict)
    if looks.gone >= (LOOKS if run.at.scheduler_id or run.at.doubt else LOOKS_UNSEEN):
        loop.begin(process_ended(run))


async def process_ended(run: Run, after_s: float = 0.0) -> None:
    """Take note that the job's script has ended; if its heartbeat never began, nothing else would report it."""
    await asyncio.sleep(after_s)
    run.hurry()
    if run.is_closed or run.heartbeat.is_looking:
        return
    run.heartbeat.is_looking = True
    try:
        # None is no answer, and nothing is concluded from that.
        if await _has_begun(run) is False:
            ask(run)
    finally:
        run.heartbeat.is_looking = False


async def _has_begun(run: Run) -> bool | None:
    """Ask for its heartbeat; None if the host gives no answer: then the next missed heartbeat asks again."""
    try:
        return (await run.at.connection.have([run.at.path(layout.HEARTBEAT)]))[0]
    except (ClusterfnError, concurrent.futures.CancelledError):
        return None


async def look_until_it_begins(run: Run) -> None:
    """Ask again and again until the job begins: another process submits it, and does not report how that went."""
    while not run.is_closed and await _has_begun(run) is False:
        ask(run)
        await asyncio.sleep(_BEGIN_S)


async def look_until_it_ends(run: Run) -> None:
    """Ask a few times whether it is gone: its scheduler was asked to kill it."""
    for _ in range(_ENDS_TIMES):
        ask(run)
        await asyncio.sleep(_ENDS_S)


async def _give_up_if_lost(run: Run, error: ClusterfnError | None = None) -> None:
    """Give up a job whose folder is gone, or that has this other error."""
    lost = await conclusion.find_loss(run.queue) or error
    if lost is not None and not run.is_closed:
        run.give_up(lost)


def _note_silence(run: Run) -> None:
    """Look for the job, or have it asked about: either answers for all jobs that are silent together."""
    if not run.is_closed:
        run.note_silence()
    host, heartbeat, now = run.at.host, run.heartbeat, time.monotonic()
    host.watch.look_now()
    if heartbeat.is_listed:
        heartbeat.is_silent = True
    elif now >= heartbeat.ask_from:
        # Only a scheduler's controller is spared: the host itself can be asked about its processes at any time.
        heartbeat.ask_from = now + _EVIDENCE_S if host.scheduler.has_nodes else 0.0
        ask(run)


def ask(run: Run) -> None:
    """Have the host asked about it, together with others, after the question that is open now; from any thread."""
    if not run.is_closed:
        loop.call(_of_hosts.setdefault(run.at.host, SilentJobs()).add, run)


class SilentJobs:
    """The silent jobs of one host, asked about in one question at a time: a slow one is asked no more for them."""

    def __init__(self) -> None:
        self._waiting: dict[Run, None] = {}
        self._asking = loop.Single(self._ask_all)

    def add(self, run: Run) -> None:
        self._waiting[run] = None
        self._asking.begin()

    async def _ask_all(self) -> None:
        """Ask about those that are silent, then about those that have fallen silent meanwhile."""
        while silent := self._next():
            await self._ask(silent[0].at.host, silent)

    def _next(self) -> list[Run]:
        left = [run for run in self._waiting if not run.is_closed]
        most = _AT_ONCE if left and left[0].at.host.scheduler.evidence_of_many else 1
        self._waiting = dict.fromkeys(left[most:])
        return left[:most]

    async def _ask(self, host: HostState, silent: list[Run]) -> None:
        """Ask about these jobs, and have those concluded that are gone."""
        try:
            left = collections.deque(await _read_claims(host, silent))
            if not left:
                return
            question = host.scheduler.evidence_command(*(submission for _, submission in left))
            answer = await host.connection.run(question, unset=host.scheduler.unset)
        except Unreachable:
            # The connection has ended.
            return
        except (ClusterfnError, concurrent.futures.CancelledError):
            if host.is_connected:
                # Nothing else may report that these jobs are gone, so they are asked about again.
                loop.begin(self._ask_later(silent))
            return
        output = (answer.out + answer.err).decode("utf-8", "replace")
        await asyncio.gather(*(_conclude_each(host, left, output) for _ in range(min(_CONCLUDED_AT_ONCE, len(left)))))

    async def _ask_later(self, silent: list[Run]) -> None:
        await asyncio.sleep(AGAIN_S)
        for run in silent:
            self.add(run)


async def _read_claims(host: HostState, silent: list[Run]) -> list[tuple[Run, str]]:
    """Return the jobs of which a submission is known, with it: others of these have long ended, or never began."""
    claims = [posixpath.join(run.folder, layout.CLAIM) for run in silent]
    # With a second file, grep begins each line with the name of the file, even for a single claim.
    read = await host.connection.run(["grep", "-s", "", *claims, "/dev/null"])
    lines = read.out.decode("utf-8", "surrogateescape").splitlines()
    pairs = (line.rpartition(f"/{layout.CLAIM}:") for line in lines)
    by_folder = {folder: conclusion.submission_of(claim) for folder, _, claim in pairs}
    claimed = []
    for run in silent:
        submission = by_folder.get(run.folder) or run.at.scheduler_id
        run.at.scheduler_id = run.at.scheduler_id or submission
        if submission:
            claimed.append((run, submission))
        elif not run.is_closed:
            loop.begin(_conclude_unseen(run))
    return claimed


async def _conclude_unseen(run: Run) -> None:
    """Conclude a job without a claim or an id that no look by its name has found: it was never submitted."""
    at, message = run.at, "the scheduler does not know the job, and it never started"
    try:
        if at.host.scheduler.knows_all:
            may_begin = await conclusion.is_refused_elsewhere(at.connection, at.folder)
        else:
            spec, message = posixpath.join(at.folder, layout.SPEC), "the job was sent but never started"
            is_old = bool((await at.connection.run(["find", spec, "-mmin", "+1"])).out)
            # A younger job may be about to start, and so may one that waits in the agent of another program.
            may_begin = not is_old or await conclusion.may_start_later(at.host)
    except (ClusterfnError, concurrent.futures.CancelledError):
        # The next missed heartbeat asks again.
        return
    if may_begin:
        return
    verdict = SchedulerVerdict(layout.LOST, message, hint="call the function again", stage="submit", withdraw=True)
    await conclude_or_give_up(run, verdict)


async def _conclude_each(host: HostState, left: collections.deque[tuple[Run, str]], output: str) -> None:
    """Have jobs concluded that are gone by what the scheduler said, one after another, until none is left."""
    while left:
        run, submission = left.popleft()
        # Where one question covers many jobs, the answer alone shows that most of them live. An answer about a single
        # job may need its log.
        lives = host.scheduler.evidence_of_many and conclusion.explain(run.at, output, "", submission) is None
        if run.is_closed or lives:
            continue
        try:
            tail = await host.connection.run(["tail", "-c", str(_LOG_TAIL), run.at.log_path("scheduler")])
            log = tail.out.decode("utf-8", "replace")
        except (HostError, concurrent.futures.CancelledError):
            log = ""
        verdict = conclusion.explain(run.at, output, log, submission)
        if verdict is not None and not run.is_closed:
            await conclude_or_give_up(run, verdict)


_of_hosts: weakref.WeakKeyDictionary[HostState, SilentJobs] = weakref.WeakKeyDictionary()


def conclude_and_cancel(run: Run, verdict: SchedulerVerdict) -> None:
    """Have this published, and the job taken out of the queue; if it has begun meanwhile it continues."""
    # The outcome of the job may end the program, and the scheduler must be asked before that.
    exit_flush.await_at_exit(loop.start(_conclude_and_cancel(run, verdict)))


async def _conclude_and_cancel(run: Run, verdict: SchedulerVerdict) -> None:
    published = await conclude_or_give_up(run, verdict)
    has_begun = published is None or published.get("attempt", "") is None
    if not has_begun:
        run.queue.cancel()


async def conclude_or_give_up(run: Run, verdict: SchedulerVerdict) -> Mapping[str, Any] | None:
    """Have this published, unless there is an outcome; return what is: {} if the host cannot, None without an answer.

    The next missed heartbeat asks again, or the job is given up: once the disk was full for a minute, or after two
    failures as the bridge or its folder is gone.
    """
    published: Mapping[str, Any] | None = None
    try:
        answer = await conclusion.ask(run, verdict)
        published = {}
        published = conclusion.parse_conclusion(answer, run.at.host.settings, run.folder)
    except (Unreachable, concurrent.futures.CancelledError):
        return None
    except ClusterfnError as error:
        await _retry_or_give_up(run, error)
    else:
        run.heartbeat.failed = 0
    return published


async def _retry_or_give_up(run: Run, error: ClusterfnError) -> None:
    pauses_s = layout.ROOM_PAUSES_S if isinstance(error, HostDiskFull) else (0.0,)
    failed = run.heartbeat.failed = run.heartbeat.failed + 1
    if failed <= len(pauses_s) and not run.is_closed:
        # The bridge itself may be missing on the host: without this the next try would not send it again.
        run.at.host.contents.distrust()
        loop.begin(process_ended(run, pauses_s[failed - 1]))
    elif failed == len(pauses_s) + 1:
        await _give_up_if_lost(run, error)
