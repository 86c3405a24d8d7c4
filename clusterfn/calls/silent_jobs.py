"""Asks a host about jobs whose heartbeat has stopped: one question at a time, for all of them together.

A host that is slow to answer is asked no more for it. Callbacks run on the connection's reader thread: none waits.
"""

from __future__ import annotations

import collections
import posixpath
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from clusterfn.bridge import layout
from clusterfn.errors import HostError

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Completed, Reply
    from clusterfn.hosts.host_state import HostState
    from clusterfn.scheduler.base import SchedulerVerdict

_AT_ONCE = 500  # jobs in one question: their paths are the words of a command
_CONCLUDED_AT_ONCE = 4  # each by a process of its own
_LOG_TAIL = 4000


class SilentJob(Protocol):
    """What is asked about: a `LivenessMonitor`."""

    @property
    def folder(self) -> str:
        """The job's."""

    @property
    def is_over(self) -> bool:
        """Whether its outcome is known."""

    def log_path(self) -> str:
        """Return the scheduler's log."""

    def claimed_by(self, claim: str) -> str:
        """Take what its claim holds, "" without one; return the submission to ask about, "" if there is none."""

    def explain(self, said: str, log: str, submission: str) -> SchedulerVerdict | None:
        """Return what has ended it; None if it may live."""

    def conclude(self, verdict: SchedulerVerdict) -> Reply[Completed]:
        """Have that published."""

    def on_concluded(self, concluded: Reply[Completed]) -> None:
        """Take the answer to `conclude`."""


class SilentJobs:
    """The silent jobs of one host.

    Args:
        session: The host.
    """

    def __init__(self, session: HostState) -> None:
        self._session = weakref.ref(session)
        self._waiting: dict[SilentJob, None] = {}
        self._is_asking = False
        self._gone: collections.deque[tuple[SilentJob, str, str]] = collections.deque()
        self._concluding = 0
        self._lock = threading.Lock()

    def ask(self, job: SilentJob) -> None:
        """Ask about this job, after the question that is open now."""
        with self._lock:
            self._waiting[job] = None
            if self._is_asking:
                return
            self._is_asking = True
        self._ask_next()

    def _ask_next(self) -> None:
        """Ask about those that have fallen silent meanwhile."""
        session = self._session()
        while True:
            with self._lock:
                jobs = [job for job in self._waiting if not job.is_over][: self._most(session)]
                self._waiting = {job: None for job in self._waiting if not job.is_over and job not in jobs}
                if session is None or not jobs:
                    self._is_asking = False
                    return
            claims = [posixpath.join(job.folder, layout.CLAIM) for job in jobs]
            try:
                # With two files, each line begins with the name of its own.
                read = session.connection.run(["grep", "-s", "", *claims, "/dev/null"])
            except HostError:  # the connection has ended
                continue
            read.add_done_callback(lambda reply, jobs=jobs: self._on_claims(jobs, reply))  # type: ignore[misc]
            return

    @staticmethod
    def _most(session: HostState | None) -> int:
        return _AT_ONCE if session is not None and session.scheduler.evidence_of_all([]) else 1

    def _on_claims(self, jobs: list[SilentJob], reply: Reply[Completed]) -> None:
        """Ask the scheduler about the submissions that hold the claims: others of these jobs have long ended."""
        session = self._session()
        if session is None or reply.exception() is not None:
            self._ask_next()
            return
        lines = reply.result(0).out.decode("utf-8", "surrogateescape").splitlines()
        found = (line.rpartition(f"/{layout.CLAIM}:") for line in lines)
        claims = {folder: claim.strip() for folder, _, claim in found}
        asked = [(job, job.claimed_by(claims.get(job.folder, ""))) for job in jobs]
        asked = [(job, submission) for job, submission in asked if submission]
        if not asked:
            self._ask_next()
            return
        scheduler, ids = session.scheduler, [submission for _, submission in asked]
        command = scheduler.evidence_of_all(ids) or scheduler.evidence_command(ids[0])
        try:
            said = session.connection.run(command, unset=scheduler.unset)
        except HostError:
            self._ask_next()
            return
        said.add_done_callback(lambda reply: self._on_evidence(asked, reply))

    def _on_evidence(self, asked: list[tuple[SilentJob, str]], reply: Reply[Completed]) -> None:
        if reply.exception() is None:
            text = (reply.result(0).out + reply.result(0).err).decode("utf-8", "replace")
            # This alone shows that most of many jobs live; a scheduler's answer about one may need its log.
            together = self._most(self._session()) > 1
            gone = [each for each in asked if not together or each[0].explain(text, "", each[1]) is not None]
            self._gone.extend((job, submission, text) for job, submission in gone)
        self._concluding = lanes = max(1, min(_CONCLUDED_AT_ONCE, len(self._gone)))
        for _ in range(lanes):
            self._conclude_next()

    def _conclude_next(self) -> None:
        """Have the next job that is gone concluded; ask about others once none is left."""
        session = self._session()
        while self._gone and session is not None:
            job, submission, text = self._gone.popleft()
            if job.is_over:
                continue
            try:
                log = session.connection.run(["tail", "-c", str(_LOG_TAIL), job.log_path()])
            except HostError:
                continue
            log.add_done_callback(
                lambda reply, job=job, submission=submission, text=text: self._on_log(job, submission, text, reply)  # type: ignore[misc]
            )
            return
        self._concluding -= 1
        if not self._concluding:
            self._ask_next()

    def _on_log(self, job: SilentJob, submission: str, text: str, reply: Reply[Completed]) -> None:
        log = reply.result(0).out.decode("utf-8", "replace") if reply.exception() is None else ""
        verdict = job.explain(text, log, submission)
        if verdict is None or job.is_over:
            self._conclude_next()
            return
        try:
            concluded = job.conclude(verdict)
        except HostError:
            self._conclude_next()
            return
        concluded.add_done_callback(job.on_concluded)
        concluded.add_done_callback(lambda _: self._conclude_next())


_of_hosts: weakref.WeakKeyDictionary[Any, SilentJobs] = weakref.WeakKeyDictionary()


def of_host(session: HostState) -> SilentJobs:
    """Return the silent jobs of a host."""
    found = _of_hosts.get(session)
    return found if found is not None else _of_hosts.setdefault(session, SilentJobs(session))
