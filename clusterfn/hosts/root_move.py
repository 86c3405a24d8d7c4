"""Move a host's root to another folder there: start the program that does it, and read what it says."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts.environment_facts import environments_root
from clusterfn.hosts.host_state import HostState, open_session

if TYPE_CHECKING:
    from clusterfn.config.spec import Host

Step = Mapping[str, Any]
"""One line of the host: its `step` is copy, build, remove; the last one is done or refused."""

_MOVED = "moved"
_SEND_S = 600.0


def move_root(host: Host, new: str, on_step: Callable[[Step], None]) -> Step:
    """Move the root of a host; return the last line: where it is now, what was copied, and what is left.

    A root that has moved there before, and could not be removed then, is removed.

    Args:
        new: The other folder, as clusterfn.yml may have it.
        on_step: Called with each line before the last.

    Raises:
        ClusterfnError: It cannot be moved now, and is where it was.
        HostError: The connection was lost: the next call continues.
    """
    session = open_session(host)
    try:
        old = session.root
    except HostError as error:
        if error.kind != _MOVED:
            raise
        session = open_session(host._replace(root=error.path))
        old = session.root  # the same as the new one, if only the removal of the one before is left to do
    else:
        _refuse_environments_inside(session)
    return _run(session, old, new, on_step)


def _refuse_environments_inside(session: HostState) -> None:
    """Reject an `env_root:` below the root: it would move away from the folder that clusterfn.yml names."""
    if session.host.making.root is None:
        return
    folder, root = environments_root(session), session.root
    if posixpath.commonpath([folder, root]) == root:
        raise ClusterfnError(
            f"the environments of {session.host.name} are inside its root", host=session.host.name,
            evidence=[f"env_root: {session.host.making.root}", f"root: {root}"],
            hint="remove env_root: from that host; the next call builds them below the root",
        )  # fmt: skip


def _run(session: HostState, old: str, new: str, on_step: Callable[[Step], None]) -> Step:
    for sent in session.lay_out_bridge():
        sent.result(_SEND_S)
    last: Step = {}
    partial = b""

    def receive(data: bytes) -> None:
        nonlocal last, partial
        *lines, partial = (partial + data).split(b"\n")
        for line in lines:
            last = _parsed(line)
            on_step(last)

    supervise = posixpath.join(session.bridge, layout.SUPERVISE)
    owners = json.dumps(list(session.host.owners))
    argv = [session.connection.facts.python, "-I", "-S", supervise, "move", old, new, owners]
    error = session.connection.converse(argv, b"", receive, session.scheduler.unset).exception()
    if last.get("step") == "refused":
        raise ClusterfnError(
            f"the root of {session.host.name} was not moved: {last.get('message')}", host=session.host.name,
            evidence=[str(line) for line in last.get("evidence") or ()], hint=str(last.get("hint")),
        )  # fmt: skip
    if error is not None:
        raise error
    if last.get("step") != "done":
        raise HostError(f"{session.host.name} did not say whether its root has moved", host=session.host.name)
    return last


def _parsed(line: bytes) -> Step:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
