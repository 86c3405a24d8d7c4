"""Asks a host what it knows of jobs: the list of them, what it has of one that another process sent, and its stacks.

For `attach`, it also asks for the sizes of the files that report progress; `wait_until_caught_up` waits until as many
bytes have been read. Concludes nothing.
"""

from __future__ import annotations

import functools
import io
import json
import posixpath
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, DIED, HAS_NOT_STARTED, PENDING, RAISED, RETURNED, clock
from clusterfn.bridge.supervisor.text import in_one_line, last_lines, number, printable
from clusterfn.calls.outcome import is_usage, name_files_as_here
from clusterfn.config.host_text import json_object, reading, shaped
from clusterfn.display.usage_words import short_usage
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import spoken_wait
from clusterfn.scheduler import base

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Completed, HostConnection, Reply
    from clusterfn.hosts.host_state import HostState

_TIMEOUT_S = 60.0
# Large values may take longer, and come afterwards.
_CATCH_UP_S = 15.0
_REMOVAL = {"removed": [{"id": str, "bytes": int}], "kept": [{"id": str, "why": str}]}
_LOOK_S = 0.01
_STACK_LOOK_S = 0.1
# What a job uses is a short line, and is not waited for longer than this.
_USAGE_BYTES, _USAGE_S = 1 << 20, 5.0
# A shared file system removes some thousand files a second at best.
_REMOVAL_S = 3600.0
# Without an answer of the scheduler within this time, the list is shown without its reasons.
_SCHEDULER_S = 5.0
_TEXTS, _NUMBERS = ("id", "name", "host", "state", "message"), ("started", "gpus", "ran_s", "since", "ended")
# Bytes of memory, and the seconds since 1970 that `time.localtime` still takes.
_MOST, _LATEST = 1 << 63, 1 << 40


@dataclass(frozen=True)
class JobInfo:
    """One job as its host knows it.

    Attributes:
        host: The one that it was sent to, if clusterfn.yml has it: several hosts may show one home. Else the one asked.
        started: When it was sent, in seconds since 1970, by the clock of this machine.
        state: As `Job.state`.
        message: One line about how it ended, or why it waits.
        since: Since when it is in that state, as `started`; None if that is not known.
        gpus: How many it asked for, on all nodes; of a map, for each of its processes. None if that is not known.
        ran_s: For how many seconds it has run, or ran; None before it started, and if that is not known.
        inputs: The ids of the jobs whose values it takes.
        arguments: Those of the call in a short line; of a map, those of the first and the last item.
        ended: When it ended, as `started`; None if it has not.
        asked: What it asked for, by the names of `Resources`.
        usage: As `Job.usage`, while it runs, too. Of a map it is that of all items.
        kind: That of its outcome, such as "memory"; "" before it has ended.
    """

    id: str
    name: str
    host: str
    state: str
    message: str
    started: float
    gpus: int | None = None
    ran_s: float | None = None
    inputs: Sequence[str] = ()
    since: float | None = None
    arguments: str = ""
    ended: float | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""

    @property
    def detail(self) -> str:
        """What a table says last: how it ended, or since when it waits or runs, and why."""
        if self.state in (RETURNED, RAISED, DIED, CANCELLED) or self.since is None:
            return self.message
        return f"since {clock(self.since)}{f': {self.message}' if self.message else ''}"

    def __repr__(self) -> str:
        """Take one line, as a list of them shows many."""
        facts = ", ".join(filter(None, [self.state, self.arguments, short_usage(self.usage), self.detail]))
        return f"<JobInfo {self.id} {self.name} on {self.host}: {in_one_line(facts)}>"


def say_why_they_wait(host: HostState, listed: Sequence[dict[str, Any]]) -> None:
    """Add to the jobs that wait in a scheduler's queue why they do, in the words that a waiting call shows."""
    waiting = [job for job in listed if job.get("state") == PENDING]
    if not waiting or not host.scheduler.has_nodes:
        return
    states = host.watch.last_look(_SCHEDULER_S)
    for job in waiting:
        seen = None if isinstance(states, str) else states.get(layout.job_name(str(job["name"]), str(job["id"])))
        if isinstance(states, str):
            why = in_one_line(states)
        elif seen is None or seen.phase != base.PENDING:
            continue
        elif job.get("inputs") and seen.waits_for_jobs:
            # The host has already named the jobs that this one waits for.
            continue
        else:
            why = seen.in_words
        message = "" if job["message"] == HAS_NOT_STARTED else job["message"]
        job["message"] = "; ".join(filter(None, [message, why]))


def list_host_jobs(host: HostState) -> list[dict[str, Any]]:
    """Ask the host for its jobs, a page at a time."""
    listed: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = host.bridge.supervise("list", host.root, *([after] if after else [])).result(_TIMEOUT_S)
        if answer.rc != 0:
            message = "the host could not list its jobs"
            raise ClusterfnError(message, host=host.settings.name, evidence=last_lines(answer.err, 5))
        with reading(host.settings.name, "its list of jobs"):
            page = [dict(json.loads(line)) for line in answer.out.splitlines()]
            following = str(page.pop()["after"]) if page and "after" in page[-1] else ""
            if following and not page:
                # A host could promise more pages for ever.
                raise ValueError("a page without jobs that promises more")
            page = [checked_job(job) for job in page]
        listed += page
        # The last page names no job after which to continue. A smaller id would begin the list again, without end.
        if following <= after:
            return listed
        after = following


def by_own_clock(host: HostState, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job of a host's list with its times by the clock of this machine: that of the host may be another."""
    times = {name: job[name] for name in ("started", "since", "ended") if job.get(name) is not None}
    return {**job, **{name: host.here(when) for name, when in times.items()}}


def checked_job(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job of a host's list.

    Raises:
        ValueError, KeyError, TypeError: The host has sent something else.
    """
    numbers = [job["started"], *(job[name] for name in _NUMBERS if job.get(name) is not None)]
    if not all(type(value) in (int, float) and -_LATEST < value < _LATEST for value in numbers):
        raise ValueError("a number")
    texts = [*(job[name] for name in _TEXTS), *job.get("inputs", ()), job.get("arguments", ""), job.get("kind", "")]
    if not all(type(text) is str for text in texts):
        raise ValueError("a text")
    request, usage = job.get("asked") or {}, job.get("usage") or {}
    if not all(type(asked) in (int, float) and 0 <= asked < _MOST for asked in request.values()):
        raise ValueError("what it asked for")
    if not is_usage(usage):
        raise ValueError("what it uses")
    return job


def ask_sizes(connection: HostConnection, folder: str, depth: int, *names: str) -> Reply[Completed]:
    """Ask for the sizes of all files of these names at this depth below a folder; `read_sizes` reads the answer."""
    named = [word for name in names for word in ("-o", "-name", name)][1:]
    levels = ["-mindepth", str(depth), "-maxdepth", str(depth)]
    return connection.run(["find", folder, *levels, "(", *named, ")", "-exec", "wc", "-c", "{}", "+"])


def read_sizes(folder: str, reply: Reply[Completed]) -> dict[str, int]:
    """Return the size in bytes of each file found by `ask_sizes`, by its name below the folder."""
    printed = reply.result(_TIMEOUT_S).out.decode("utf-8", "replace").splitlines()
    sizes = [(number(size), path) for size, _, path in (line.strip().partition(" ") for line in printed)]
    return {path[len(folder) + 1 :]: size for size, path in sizes if size is not None and path.startswith(folder)}


def wait_until_caught_up(is_caught_up: Callable[[], bool]) -> None:
    """Wait until the condition holds, or for as long as a host may take to send what it has."""
    spoken_wait.wait(
        functools.partial(_look_until, is_caught_up, _LOOK_S),
        lambda: "waiting for what the host has of the job so far",
        _CATCH_UP_S,
    )


def _look_until(is_over: Callable[[], bool], pause_s: float, seconds: float | None) -> bool:
    """Look again and again for so long; return whether it is over."""
    end = None if seconds is None else time.monotonic() + seconds
    while not is_over():
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(pause_s)
    return True


class RemoteGroupState(NamedTuple):
    """What the host has of a group that another process sent.

    Attributes:
        numbers: Its elements that have a folder.
        unclaimed: Those of them that have begun and have no claim: they wait in the queue again, or only gave up items.
        given_up: The latter.
        moved: Those that only gave up some items, for another host.
        is_stopped: Whether the group was asked to stop.
        is_complete: Whether each item has its line.
        journals: How many bytes there are of the journal of each element and attempt.
    """

    numbers: Sequence[int]
    unclaimed: Sequence[int]
    given_up: Sequence[int]
    moved: Sequence[int]
    is_stopped: bool
    is_complete: bool
    journals: Mapping[tuple[int, int], int]


def read_group_state(connection: HostConnection, folder: str) -> RemoteGroupState:
    """Ask the host what it has of the group in this folder, in one round trip."""
    names = [word for name in (layout.CLAIM, layout.VERDICT, layout.MOVED) for word in ("-o", "-name", name)]
    conditions = ["(", "-type", "d", *names, ")"]
    elements = posixpath.join(folder, layout.ELEMENTS)
    listing = connection.run(["find", elements, "-mindepth", "1", "-maxdepth", "2", *conditions])
    sizes_reply = ask_sizes(connection, elements, 4, layout.JOURNAL)
    outcome = posixpath.join(layout.attempt_dir(folder, 1), layout.OUTCOME)
    stopped, complete = connection.have([posixpath.join(folder, layout.CANCEL), outcome]).result(_TIMEOUT_S)
    paths = [
        path[len(elements) + 1 :] for path in listing.result(_TIMEOUT_S).out.decode("utf-8", "replace").splitlines()
    ]
    claimed = set(_elements_with(paths, layout.CLAIM))
    unclaimed = [number for number in _elements_with(paths, layout.ATTEMPTS) if number not in claimed]
    sizes = {tuple(path.split("/")): size for path, size in read_sizes(elements, sizes_reply).items()}
    with reading(connection.host.name, "the names of its journals"):
        journals = {(int(element), int(attempt)): size for (element, _, attempt, _), size in sizes.items()}
    given_up, moved = _elements_with(paths, layout.VERDICT), _elements_with(paths, layout.MOVED)
    return RemoteGroupState(_elements_with(paths, ""), unclaimed, given_up, moved, stopped, complete, journals)


def _elements_with(paths: Iterable[str], name: str) -> list[int]:
    """Return the elements that have this in their folder; "" is the folder itself."""
    elements = [element for element, _, rest in (path.partition("/") for path in paths) if rest == name]
    return sorted(found for found in map(number, elements) if found is not None)


async def list_elements(connection: HostConnection, folder: str) -> list[int]:
    """Ask which elements of a group have a folder; return their numbers."""
    answer = await connection.run(["ls", "-1", posixpath.join(folder, layout.ELEMENTS)])
    numbers = map(number, answer.out.decode("utf-8", "replace").split())
    return [number for number in numbers if number is not None]


def read_usage(connection: HostConnection, path: str) -> Mapping[str, Any]:
    """Return what a job uses, as its supervisor has last written it to this file; {} without an answer soon."""
    out = io.BytesIO()
    try:
        # The thread that brings answers cannot wait for one.
        if not connection.link.answers_here():
            connection.get(path, out.write, until=_USAGE_BYTES).result(_USAGE_S)
    except ClusterfnError:
        # Nothing has been measured yet.
        return {}
    # The supervisor may be writing the file. It overwrites the line, so the rest of a longer line may follow it.
    usage = json_object(out.getvalue().partition(b"\n")[0])
    return usage if is_usage(usage) else {}


def request_stack_dump(connection: HostConnection, folder: str, keep_waiting: Callable[[float], bool]) -> str | None:
    """Request the stacks of all threads of the job in that folder, for a person to read; None if there is no answer.

    The job's supervisor answers a file in the job's folder by one next to it, on every node that sees the folder.

    Args:
        connection: Its host.
        folder: The job's folder.
        keep_waiting: Whether to wait longer, given the seconds since the question.
    """
    token, began = secrets.token_hex(8), time.monotonic()
    question = posixpath.join(folder, layout.STACK)
    place = posixpath.join(folder, layout.stack_answer(token))
    # The answer is awaited before the question is sent, so that it cannot come unnoticed.
    answer = connection.wait(place)
    connection.put(question, token.encode(), sync=False).result(_TIMEOUT_S)
    try:

        def is_over() -> bool:
            return answer.done() or not keep_waiting(time.monotonic() - began)

        spoken_wait.wait(
            functools.partial(_look_until, is_over, _STACK_LOOK_S),
            lambda: "waiting for the supervisor of the job to show where it is",
        )
        return printable(name_files_as_here(answer.result(0).decode("utf-8", "replace"))) if answer.done() else None
    finally:
        left = [place] if answer.done() else [place, question]
        answer.cancel()
        connection.run(["rm", "-f", "--", *left])


def remove_jobs(host: HostState, ids: Sequence[str], *, dry: bool = False) -> dict[str, Any]:
    """Remove jobs that have ended, with all their files, from a host.

    Args:
        ids: With all their digits.
        dry: Remove nothing, and return the same.

    Returns:
        "removed", with the id and bytes of each, and "kept", with the id of each and why.

    Raises:
        ClusterfnError: The host could not do it.
    """
    words = [host.root, "dry" if dry else "", *ids]
    answer = host.bridge.supervise("remove", *words, timeout_s=_REMOVAL_S).result(_REMOVAL_S + _TIMEOUT_S)
    if answer.rc != 0:
        raise ClusterfnError(
            f"{host.settings.name} could not remove the jobs",
            host=host.settings.name,
            evidence=last_lines(answer.err, 5),
            hint=f"check {host.root}/jobs on the host: is its file system mounted, and can you write to it?",
        )
    with reading(host.settings.name, "its list of removed jobs"):
        return dict(shaped(json.loads(answer.out), _REMOVAL))
