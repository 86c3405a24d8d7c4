"""`clusterfn rm`: remove jobs that have ended, with all their files, from their hosts."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any

from clusterfn.bridge.supervisor.text import format_size, in_one_line
from clusterfn.calls import console
from clusterfn.calls.at_once import at_once
from clusterfn.calls.attach import find_job
from clusterfn.calls.remote_state import remove_jobs
from clusterfn.cli import screen
from clusterfn.cli.complaint import error_facts
from clusterfn.cli.selection import ENDED, Selection, select
from clusterfn.config import config_file
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.host_state import HostState, open_session

# The ids are words of one command line, whose length is limited.
_AT_ONCE = 500


def remove(args: argparse.Namespace) -> int:
    """Remove each job that has ended; say which were kept and why. Return 1 if one that was named was kept."""
    selection = select(args, "rm", ENDED)
    removed: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for session, ids in _by_host(selection, kept):
        for first in range(0, len(ids), _AT_ONCE):
            part = ids[first : first + _AT_ONCE]
            try:
                outcomes = remove_jobs(session, part, dry=args.dry_run)
            except ClusterfnError as error:
                if selection.single:
                    raise
                kept += (_describe_kept(job_id, error) for job_id in part)
                continue
            removed += ({**each, "host": session.host.name} for each in outcomes["removed"])
            kept += ({**each, "host": session.host.name} for each in outcomes["kept"])
    if args.json:
        print(screen.as_json({"removed": removed, "kept": kept}))
    else:
        _print_removed(removed, kept, dry=args.dry_run)
    return 1 if kept else 0


def _by_host(selection: Selection, kept: list[dict[str, Any]]) -> Iterator[tuple[HostState, list[str]]]:
    """Find each job, and yield the hosts with the full ids of theirs; add to `kept` what cannot be found."""
    config, listed = config_file.load(), dict(selection.listed)
    sessions: dict[str, HostState] = {}
    ids: dict[str, list[str]] = {}

    def find(job: tuple[str, str | None]) -> tuple[HostState, str]:
        if job[0] in listed:
            return open_session(config.resolve(listed[job[0]])[0]), job[0]
        session, folder = find_job(*job)
        return session, posixpath.basename(folder)

    for (job_id, _), answer in zip(selection.jobs, at_once(selection.jobs, find, "looking for the jobs")):
        try:
            session, full_id = answer.result()
        except ClusterfnError as error:
            if selection.single:
                raise
            kept.append(_describe_kept(job_id, error))
            continue
        sessions[session.host.name] = session
        ids.setdefault(session.host.name, []).append(full_id)
    for name, session in sessions.items():
        yield session, list(dict.fromkeys(ids[name]))


def _describe_kept(job_id: str, error: ClusterfnError) -> dict[str, Any]:
    return {"id": job_id, "why": error.message, "error": error_facts(error)}


def _print_removed(removed: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]], *, dry: bool) -> None:
    for each in removed:
        done = "would remove" if dry else "removed"
        print(in_one_line(f"{done} {each['id']} from {each['host']}, {format_size(each['bytes'])}"))
    for each in kept:
        hint = f"; clusterfn cancel {each['id']} ends it first" if each["why"].startswith("it is ") else ""
        console.warn(in_one_line(f"{each['id']} was not removed: {each['why']}{hint}"))
    if not removed and not kept:
        console.tell("nothing to remove: no such job has ended")
    elif len(removed) > 1:
        total = format_size(sum(each["bytes"] for each in removed))
        console.tell(f"{len(removed)} jobs, {total} {'would be freed' if dry else 'freed'}")
