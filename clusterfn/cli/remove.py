"""`clusterfn rm`: remove jobs that have ended, with all their files, from their hosts."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any

from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import console
from clusterfn.calls.attach import find_job
from clusterfn.calls.remote_state import remove_jobs
from clusterfn.cli import screen
from clusterfn.cli.complaint import error_facts
from clusterfn.cli.selection import ENDED, select
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.host_state import HostState

_AT_ONCE = 500


def remove(given: argparse.Namespace) -> int:
    """Remove each job that has ended; say which were kept and why. Return 1 if one that was named was kept."""
    selection = select(given, "rm", ENDED)
    removed: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for session, ids in _by_host(selection.jobs, kept, selection.single):
        for first in range(0, len(ids), _AT_ONCE):
            told = remove_jobs(session, ids[first : first + _AT_ONCE], dry=given.dry_run)
            removed += ({**each, "host": session.host.name} for each in told["removed"])
            kept += ({**each, "host": session.host.name} for each in told["kept"])
    if given.json:
        print(screen.as_json({"removed": removed, "kept": kept}))
    else:
        _print_removed(removed, kept, dry=given.dry_run)
    return 1 if kept else 0


def _by_host(
    jobs: Sequence[tuple[str, str | None]], kept: list[dict[str, Any]], single: bool
) -> Iterator[tuple[HostState, list[str]]]:
    """Find each job, and yield the hosts with the full ids of theirs; add to `kept` what cannot be found."""
    sessions: dict[str, HostState] = {}
    ids: dict[str, list[str]] = {}
    for job_id, host in jobs:
        try:
            session, folder = find_job(job_id, host)
        except ClusterfnError as error:
            if single:
                raise
            kept.append({"id": job_id, "why": error.message, "error": error_facts(error)})
            continue
        sessions[session.host.name] = session
        ids.setdefault(session.host.name, []).append(posixpath.basename(folder))
    for name, session in sessions.items():
        yield session, list(dict.fromkeys(ids[name]))


def _print_removed(removed: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]], *, dry: bool) -> None:
    for each in removed:
        done = "would remove" if dry else "removed"
        print(in_one_line(f"{done} {each['id']} from {each['host']}, {screen.size(each['bytes'])}"))
    for each in kept:
        hint = f"; clusterfn cancel {each['id']} ends it first" if each["why"].startswith("it is ") else ""
        console.warn(in_one_line(f"{each['id']} was not removed: {each['why']}{hint}"))
    if not removed and not kept:
        console.tell("nothing to remove: no such job has ended")
    elif len(removed) > 1:
        total = screen.size(sum(each["bytes"] for each in removed))
        console.tell(f"{len(removed)} jobs, {total} {'would be freed' if dry else 'freed'}")
