"""`clusterfn clean` removes what is no longer needed from a host.

`clusterfn rm` removes jobs that have ended, with all their files, from their hosts.
"""

from __future__ import annotations

import argparse
import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from clusterfn.bridge import layout, removal
from clusterfn.bridge.supervisor.text import counted, format_size, in_one_line, last_lines
from clusterfn.calls.attach import find_job
from clusterfn.calls.remote_state import remove_jobs
from clusterfn.cli import target
from clusterfn.cli.command_line import error_facts
from clusterfn.cli.selection import ENDED, Selection, agreed, select
from clusterfn.config import config_file
from clusterfn.config.host_text import reading, shaped
from clusterfn.config.units import parse_time
from clusterfn.display import console, live
from clusterfn.display.at_once import at_once
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.host_state import HostState, open_host

# The host needs some time more than the limit of its program to report that the limit was reached.
_ANSWERS_S = 60.0
# A shared file system removes only some thousand files a second, so a large cleanup takes very long.
_TIMEOUT_S = 3600.0
_HEAD = ("WHAT", "COUNT", "SIZE", "REMOVED", "FREED")
_DRY_HEAD = ("WHAT", "COUNT", "SIZE", "WOULD GO", "WOULD FREE")
_NAMES = {
    layout.JOBS: "jobs",
    layout.BLOBS: "large arguments",
    layout.FILES: "files",
    layout.SOURCES: "modules",
    layout.SHIMS: "shims",
    layout.BRIDGE: "versions of clusterfn",
}

Kinds = Mapping[str, Mapping[str, int]]
_KIND = {"count": int, "bytes": int, "gone": int, "freed": int}
_REPORT = {"kinds": {...: _KIND}, "waiting": [str], "recent": int}


def clean(args: argparse.Namespace) -> int:
    """Remove it, or show what would go."""
    older_s = None if args.older is None else parse_time(args.older, "--older")
    host = target.host_state(args.host, "clean")
    outcome = look(host, older_s, dry=args.dry_run, timeout_s=_TIMEOUT_S)
    _show(outcome["kinds"], args, host.root)
    if outcome["waiting"] and not args.json:
        count = counted(len(outcome["waiting"]), "job")
        console.tell(f"kept for {count}, waiting or running: files used since the oldest was sent")
    elif outcome["recent"] and not args.json:
        console.tell(f"not removed: {outcome['recent']} used in the last 2 hours, which a program may still need")
    return 0


def look(host: HostState, older_s: float | None, *, dry: bool, timeout_s: float) -> dict[str, Any]:
    """Ask what there is below a host's root by its kind, and what of it goes.

    Args:
        older_s: What ended, or was used last, longer ago than this goes; None: as long as the host keeps jobs.

    Raises:
        ClusterfnError: The host cannot say, or not in time.
    """
    words = [
        str(host.settings.keep_days * removal.DAY_S),
        "" if older_s is None else str(older_s),
        "dry" if dry else "",
    ]
    answer = host.bridge.supervise("clean", host.root, *words, timeout_s=timeout_s).result(timeout_s + _ANSWERS_S)
    if answer.rc != 0:
        message = f"{host.settings.name} could not look through {host.root}"
        hint = "check that folder on the host: is its file system mounted, and can you write to it?"
        raise ClusterfnError(message, host=host.settings.name, evidence=last_lines(answer.err, 5), hint=hint)
    with reading(host.settings.name, "what can be removed"):
        return dict(shaped(json.loads(answer.out), _REPORT))


def total(kinds: Kinds) -> str:
    """Say how much there is of each kind, the largest first, in one line."""
    sizes = sorted(((amounts["bytes"], _NAMES.get(kind, kind)) for kind, amounts in kinds.items()), reverse=True)
    return ", ".join(f"{name} {format_size(size)}" for size, name in sizes if size)


def _show(kinds: Kinds, args: argparse.Namespace, root: str) -> None:
    if args.json:
        print(console.as_json({"root": root, "kinds": kinds}))
        return
    if kinds:
        rows = []
        for kind, amounts in kinds.items():
            there = [str(amounts["count"]), format_size(amounts["bytes"])]
            rows.append([_NAMES.get(kind, kind), *there, str(amounts["gone"]), format_size(amounts["freed"])])
        print(live.table(_DRY_HEAD if args.dry_run else _HEAD, rows))
    freed = format_size(sum(amounts["freed"] for amounts in kinds.values()))
    console.tell(f"{freed} {'would be freed' if args.dry_run else 'freed'}")


# The ids are words of one command line, whose length is limited.
_AT_ONCE = 500


def remove(args: argparse.Namespace) -> int:
    """Remove each job that has ended; say which were kept and why. Return 1 if one that was named was kept."""
    selection = select(args, "rm", ENDED)
    if not args.dry_run and not agreed(selection, args, "remove"):
        return 1
    removed: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for host, ids in _by_host(selection, kept):
        for first in range(0, len(ids), _AT_ONCE):
            part = ids[first : first + _AT_ONCE]
            try:
                outcomes = remove_jobs(host, part, dry=args.dry_run)
            except ClusterfnError as error:
                if selection.single:
                    raise
                kept += (_describe_kept(job_id, error) for job_id in part)
                continue
            removed += ({**job, "host": host.settings.name} for job in outcomes["removed"])
            kept += ({**job, "host": host.settings.name} for job in outcomes["kept"])
    if args.json:
        print(console.as_json({"removed": removed, "kept": kept}))
    else:
        done, freed = ("would remove", "would be freed") if args.dry_run else ("removed", "freed")
        for job in removed:
            print(in_one_line(f"{done} {job['id']} from {job['host']}, {format_size(job['bytes'])}"))
        for job in kept:
            hint = f"; clusterfn cancel {job['id']} ends it first" if job["why"].startswith("it is ") else ""
            console.warn(in_one_line(f"{job['id']} was not removed: {job['why']}{hint}"))
        if not removed and not kept:
            console.tell("nothing to remove: no such job has ended")
        elif len(removed) > 1:
            console.tell(f"{len(removed)} jobs, {format_size(sum(job['bytes'] for job in removed))} {freed}")
    return 1 if kept else 0


def _by_host(selection: Selection, kept: list[dict[str, Any]]) -> Iterator[tuple[HostState, list[str]]]:
    """Find each job, and yield the hosts with the full ids of theirs; add to `kept` what cannot be found."""
    config = config_file.load()
    listed = dict(selection.listed)
    states: dict[str, HostState] = {}
    ids: dict[str, list[str]] = {}

    def find(job: tuple[str, str | None]) -> tuple[HostState, str]:
        if job[0] in listed:
            return open_host(config.resolve(listed[job[0]])[0]), job[0]
        host, folder = find_job(*job)
        return host, posixpath.basename(folder)

    for (job_id, _), answer in zip(selection.jobs, at_once(selection.jobs, find, "looking for the jobs")):
        try:
            host, full_id = answer.result()
        except ClusterfnError as error:
            if selection.single:
                raise
            kept.append(_describe_kept(job_id, error))
            continue
        states[host.settings.name] = host
        ids.setdefault(host.settings.name, []).append(full_id)
    for name, host in states.items():
        yield host, list(dict.fromkeys(ids[name]))


def _describe_kept(job_id: str, error: ClusterfnError) -> dict[str, Any]:
    return {"id": job_id, "why": error.message, "error": error_facts(error)}
