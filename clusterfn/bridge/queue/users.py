"""Report what clusterfn runs on this machine, and for whom: by the names that the jobs of all users hold.

Everybody can read those names, so it needs no rights. `supervise.py users` prints a table for people on the machine,
`supervise.py users LEASE` a JSON object for a client.
"""

import json
import sys

from ..supervisor.gpus import user_name
from . import lease_names, machine
from .lease import leases_of_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

KINDS = ("socket", "file")
_HEAD = ("USER", "JOB", "STATE", "GPUS", "CORES", "MEMORY")


def print_users(*lease: str) -> int:
    """Print the jobs of all users; with the kind of `lease`, as JSON."""
    seen = [look(leases_of_kind(kind).binders(), machine.now_s()) for kind in lease or KINDS]
    rows = [row for rows in seen for row in rows]
    text = json.dumps({"jobs": rows}) if lease else as_table(rows)
    sys.stdout.buffer.write((text + "\n").encode("utf-8", "replace"))
    return 0


def look(names: "Iterable[str]", now_s: int) -> "list[dict[str, Any]]":
    """Return `user`, `job`, `state` and what it asked for, of each job that runs or is next in its user's line."""
    seen = lease_names.Seen(names, now_s)
    found = [(job, "RUNNING") for job in sorted(seen.running)] + [(job, "PENDING") for job in seen.waiting]
    return [dict(job.asked._asdict(), user=user_name(job.uid), job=job.job, state=state) for job, state in found]


def as_table(rows: "list[dict[str, Any]]") -> str:
    """Format the rows for people."""
    lines = [_HEAD] + [
        (row["user"], row["job"], row["state"], str(row["gpus"]), str(row["cores"]), "%d MB" % row["memory_mb"])
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    shown = ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join("".join(each if each.isprintable() else "?" for each in line) for line in shown)
