"""Asks a host for the state of a job or group: what it has of one that another process sent, and the stacks of one.

For `attach`, it also asks for the sizes of the files that report progress; `wait_until_caught_up` waits until as many
bytes have been read. Concludes nothing.
"""

from __future__ import annotations

import functools
import json
import posixpath
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import last_lines, number, printable
from clusterfn.calls.outcome import name_files_as_here
from clusterfn.config.host_text import reading, shaped
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import spoken_wait

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Completed, HostConnection, Reply
    from clusterfn.hosts.host_state import HostState

_TIMEOUT_S = 60.0
# Large values may take longer, and come afterwards.
_CATCH_UP_S = 15.0
_REMOVAL = {"removed": [{"id": str, "bytes": int}], "kept": [{"id": str, "why": str}]}
_LOOK_S = 0.01
_STACK_LOOK_S = 0.1
# A shared file system removes some thousand files a second at best.
_REMOVAL_S = 3600.0


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
        lambda: "waiting for what the host has of the job so far", _CATCH_UP_S,
    )  # fmt: skip


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
        is_stopped: Whether the group was asked to stop.
        is_complete: Whether each item has its line.
        journals: How many bytes there are of the journal of each element and attempt.
    """

    numbers: Sequence[int]
    unclaimed: Sequence[int]
    given_up: Sequence[int]
    is_stopped: bool
    is_complete: bool
    journals: Mapping[tuple[int, int], int]


def read_group_state(connection: HostConnection, folder: str) -> RemoteGroupState:
    """Ask the host what it has of the group in this folder, in one round trip."""
    conditions = ["(", "-type", "d", "-o", "-name", layout.CLAIM, "-o", "-name", layout.VERDICT, ")"]
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
    given_up = _elements_with(paths, layout.VERDICT)
    return RemoteGroupState(_elements_with(paths, ""), unclaimed, given_up, stopped, complete, journals)


def _elements_with(paths: Iterable[str], name: str) -> list[int]:
    """Return the elements that have this in their folder; "" is the folder itself."""
    elements = [element for element, _, rest in (path.partition("/") for path in paths) if rest == name]
    return sorted(each for each in map(number, elements) if each is not None)


async def list_elements(connection: HostConnection, folder: str) -> list[int]:
    """Ask which elements of a group have a folder; return their numbers."""
    answer = await connection.run(["ls", "-1", posixpath.join(folder, layout.ELEMENTS)])
    numbers = map(number, answer.out.decode("utf-8", "replace").split())
    return [each for each in numbers if each is not None]


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
        )  # fmt: skip
        return printable(name_files_as_here(answer.result(0).decode("utf-8", "replace"))) if answer.done() else None
    finally:
        left = [place] if answer.done() else [place, question]
        answer.cancel()
        connection.run(["rm", "-f", "--", *left])


def remove_jobs(session: HostState, ids: Sequence[str], *, dry: bool = False) -> dict[str, Any]:
    """Remove jobs that have ended, with all their files, from a host.

    Args:
        ids: With all their digits.
        dry: Remove nothing, and return the same.

    Returns:
        "removed", with the id and bytes of each, and "kept", with the id of each and why.

    Raises:
        ClusterfnError: The host could not do it.
    """
    words = [session.root, "dry" if dry else "", *ids]
    answer = session.bridge.supervise("remove", *words, timeout_s=_REMOVAL_S).result(_REMOVAL_S + _TIMEOUT_S)
    if answer.rc != 0:
        raise ClusterfnError(
            f"{session.host.name} could not remove the jobs", host=session.host.name,
            evidence=last_lines(answer.err, 5),
            hint=f"check {session.root}/jobs on the host: is its file system mounted, and can you write to it?",
        )  # fmt: skip
    with reading(session.host.name, "its list of removed jobs"):
        return dict(shaped(json.loads(answer.out), _REMOVAL))
