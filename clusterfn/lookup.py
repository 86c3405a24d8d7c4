"""Finds jobs again, from any process and any machine: `attach(id)` and `jobs()`.

The ledger remembers on which host a job was started from here; the hosts themselves know the rest.
Called by users and the CLI.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from clusterfn import config, download, layout, ledger
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.job import SHORT, Job
from clusterfn.session import Session, open_session
from clusterfn.tracker import Tracker

_HEX = frozenset("0123456789abcdef")
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class JobInfo:
    """One job as its host knows it.

    Attributes:
        started: Seconds since 1970, by the host's clock, at which it was sent.
        state: As `Job.state`.
        message: One line about how it ended, or why it waits.
    """

    id: str
    name: str
    host: str
    state: str
    message: str
    started: float


def attach(job_id: str, host: str | None = None, live: bool = False) -> Job[Any]:
    """The job of that id, whoever sent it from wherever.

    Args:
        job_id: Its id, or the first four digits or more of it.
        host: Its host's name; without it the ledger, then all hosts of clusterfn.yml are asked.
        live: Whether its output is followed, from the beginning.

    Returns:
        A Job, as `submit` returned it.

    Raises:
        ConfigError: There is no such job, or the digits fit several.

    Example:
        >>> clusterfn.attach("7f3a").result()
    """
    if len(job_id) < SHORT or not set(job_id) <= _HEX:
        raise ConfigError(
            f"{job_id!r} is not the id of a job", hint="give at least its first four digits, such as 7f3a"
        )
    session, folder = _find(job_id, host)
    spec = json.loads(download.read_bytes(session.connection, posixpath.join(folder, layout.SPEC)))
    tracker = Tracker(session, spec["id"], spec["name"], live, spec["bridge"])
    job: Job[Any] = Job(spec["id"], spec["name"], session.host.name, folder, tracker)
    tracker.attach(job)
    return job


def jobs(host: str | None = None) -> list[JobInfo]:
    """The jobs on a host, newest first; without a name on the host that a call would use.

    Raises:
        ConfigError, HostError: The host is unknown or cannot be reached.
    """
    chosen, _ = config.load().resolve(host)
    session = open_session(chosen)
    answer = session.supervise("list", session.root).result(_TIMEOUT_S)
    if answer.rc != 0:
        said = answer.err.decode("utf-8", "replace").splitlines()[-5:]
        raise ClusterfnError("the host could not list its jobs", host=chosen.name, evidence=said)
    found = [JobInfo(host=chosen.name, **json.loads(line)) for line in answer.out.splitlines()]
    return sorted(found, key=lambda job: job.started, reverse=True)


def _find(job_id: str, host: str | None) -> tuple[Session, str]:
    known = config.load()
    names = [host] if host is not None else _remembered(job_id, known) or list(known.hosts)
    found: list[tuple[Session, str]] = []
    for name in names:
        session = open_session(known.resolve(name)[0])
        found += [(session, folder) for folder in _folders(session, job_id)]
    if not found:
        raise ConfigError(
            f"there is no job {job_id} on {', '.join(names)}", hint="clusterfn jobs HOST lists what is there"
        )
    if len(found) > 1:
        several = [f"{posixpath.basename(folder)} on {session.host.name}" for session, folder in found]
        raise ConfigError(f"{job_id} fits {len(found)} jobs", evidence=several[:10], hint="give more digits")
    return found[0]


def _folders(session: Session, job_id: str) -> Iterable[str]:
    folder = posixpath.join(session.root, layout.JOBS)
    argv = ["find", folder, "-maxdepth", "1", "-name", job_id + "*"]
    return session.connection.run(argv).result(_TIMEOUT_S).out.decode().splitlines()


def _remembered(job_id: str, known: config.Config) -> list[str]:
    return [name for name in ledger.hosts_of(job_id) if name in known.hosts]
