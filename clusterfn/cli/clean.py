"""`clusterfn clean`: remove what is no longer needed from a host, or from the cache of this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from clusterfn.bridge import layout, removal
from clusterfn.bridge.supervisor.text import counted, format_size, in_one_line
from clusterfn.calls import console
from clusterfn.cli import screen, target
from clusterfn.config import places
from clusterfn.config.host_text import reading, shaped
from clusterfn.config.units import parse_time
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts.host_state import HostState, open_session

# The host needs some time more than the limit of its program to report that the limit was reached.
_ANSWERS_S = 60.0
# A shared file system removes only some thousand files a second, so a large cleanup takes very long.
_TIMEOUT_S = 3600.0
_HEAD = ("WHAT", "COUNT", "SIZE", "REMOVED", "FREED")
_DRY_HEAD = ("WHAT", "COUNT", "SIZE", "WOULD GO", "WOULD FREE")
_NAMES = {
    layout.JOBS: "jobs", layout.BLOBS: "large arguments", layout.FILES: "files", layout.SOURCES: "modules",
    layout.SHIMS: "shims", layout.BRIDGE: "versions of clusterfn",
}  # fmt: skip
_PACKAGES = "packages"

Kinds = Mapping[str, Mapping[str, int]]
_KIND = {"count": int, "bytes": int, "gone": int, "freed": int}
_REPORT = {"kinds": {...: _KIND}, "waiting": [str], "recent": int}


def clean(args: argparse.Namespace) -> int:
    """Remove it, or show what would go."""
    older_s = None if args.older is None else parse_time(args.older, "--older")
    if args.local:
        if args.host:
            raise ConfigError("--local is about this machine, not a host", hint="clusterfn clean --local")
        return _show(_local(older_s or 0.0, args.dry_run), args, "")
    _, host, _ = target.host(args.host, "clean")
    session = open_session(host)
    outcome = look(session, older_s, dry=args.dry_run, timeout_s=_TIMEOUT_S)
    _show(outcome["kinds"], args, session.root)
    if outcome["waiting"] and not args.json:
        count = counted(len(outcome["waiting"]), "job")
        console.tell(f"kept for {count}, waiting or running: files used since the oldest was sent")
    elif outcome["recent"] and not args.json:
        console.say(
            f"clusterfn: not removed: {outcome['recent']} used in the last 2 hours, which a program may still need\n"
        )
    return 0


def look(session: HostState, older_s: float | None, *, dry: bool, timeout_s: float) -> dict[str, Any]:
    """Ask what there is below a host's root by its kind, and what of it goes.

    Args:
        older_s: What ended, or was used last, longer ago than this goes; None: as long as the host keeps jobs.

    Raises:
        ClusterfnError: The host cannot say, or not in time.
    """
    words = [str(session.host.keep_days * removal.DAY_S), "" if older_s is None else str(older_s), "dry" if dry else ""]
    answer = session.bridge.supervise("clean", session.root, *words, timeout_s=timeout_s).result(timeout_s + _ANSWERS_S)
    if answer.rc != 0:
        lines = answer.err.decode("utf-8", "replace").splitlines()[-5:]
        raise ClusterfnError(
            f"{session.host.name} could not look through {session.root}", host=session.host.name, evidence=lines,
            hint="check that folder on the host: is its file system mounted, and can you write to it?",
        )  # fmt: skip
    with reading(session.host.name, "what can be removed"):
        return dict(shaped(json.loads(answer.out), _REPORT))


def total(kinds: Kinds) -> str:
    """Say how much there is of each kind, the largest first, in one line."""
    sizes = sorted(((each["bytes"], _NAMES.get(kind, kind)) for kind, each in kinds.items()), reverse=True)
    return ", ".join(f"{name} {format_size(size)}" for size, name in sizes if size)


def _show(kinds: Kinds, args: argparse.Namespace, root: str) -> int:
    if args.json:
        print(screen.as_json({"root": root, "kinds": kinds}))
        return 0
    if kinds:
        print(screen.table(_DRY_HEAD if args.dry_run else _HEAD, _rows(kinds)))
    freed = format_size(sum(each["freed"] for each in kinds.values()))
    console.say(in_one_line(f"clusterfn: {freed} {'would be freed' if args.dry_run else 'freed'}") + "\n")
    return 0


def _rows(kinds: Kinds) -> Iterator[list[str]]:
    for kind, each in kinds.items():
        counts = [str(each["count"]), format_size(each["bytes"]), str(each["gone"]), format_size(each["freed"])]
        yield [_NAMES.get(kind, kind), *counts]


def _local(older_s: float, dry: bool) -> dict[str, dict[str, int]]:
    """Remove what can be fetched or made again. Locks stay: a new one might name other versions."""
    report = removal.CleanupReport(dry, measure=True)
    report.counts(_PACKAGES)
    for path in removal.paths_in(str(places.cache_folder() / "pkgs")):
        report.add(_PACKAGES, path, removal.is_due(removal.date_of(path), older_s))
    return dict(report.summary["kinds"])
