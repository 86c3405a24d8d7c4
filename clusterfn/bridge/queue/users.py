"""Report what clusterfn runs on this machine, and for whom: by the names that the jobs of all users hold.

Everybody can read those names, so it needs no rights. `supervise.py users` prints a table for people on the machine,
`supervise.py users LEASE` a JSON object for a client.
"""

import json
import sys

from ..supervisor.process_tree import user_name
from ..supervisor.text import format_duration, format_size
from . import lease_names, machine
from .lease import leases_of_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

KINDS = ("socket", "file")
_HEAD = ("USER", "JOB", "STATE", "GPUS", "CORES", "MEMORY", "USED")


def print_users(*lease: str) -> int:
    """Print the jobs of all users; with the kind of `lease`, as JSON."""
    held = [leases_of_kind(kind).binders() for kind in lease or KINDS]
    rows = [row for names in held for row in look(names, machine.now_s())]
    false = [row for names in held for row in false_names(names)]
    text = json.dumps({"jobs": rows, "false": false}) if lease else as_table(rows)
    sys.stdout.buffer.write((text + "\n").encode("utf-8", "replace"))
    return 0


def look(names: "Iterable[str]", now_s: int) -> "list[dict[str, Any]]":
    """Return `user`, `job`, `state` and what it asked for, of each job that runs or is next in its user's line.

    Those that wait are in the order in which they come. `used`: how much of the machine their user has used, in
    seconds, of all GPUs for jobs with GPUs, else of all cores; None where that is not published, as of a user of whom
    no such job waits. None for all if the bridge of one is too old to say it, so that the oldest comes first.
    """
    held_names = lease_names.HeldNames(names, now_s)
    used: "dict[tuple[int, bool], float]" = {}
    # Of the jobs of one user, the first has the smallest value, which is that of the user.
    for job in held_names.in_order() if held_names.is_fair else []:
        used.setdefault((job.uid, bool(job.asked.gpus)), job.used.ms / 1000.0)
    jobs: "list[tuple[str, Any, Optional[float]]]" = []
    jobs += [("RUNNING", job, used.get((job.uid, bool(job.asked.gpus)))) for job in sorted(held_names.running)]
    for job in held_names.in_order():
        jobs.append(("PENDING", job, job.used.ms / 1000.0 if held_names.is_fair else None))
    return [
        dict(job.asked._asdict(), user=user_name(job.uid), job=job.job, state=state, used=used_s)
        for state, job, used_s in jobs
    ]


def false_names(names: "Iterable[str]") -> "list[dict[str, str]]":
    """Return `user` and `name` of each name that another user has bound than it says: it counts for nothing."""
    false = lease_names.HeldNames(names, 0).false
    return [{"user": user_name(uid), "name": name} for name, uid in sorted(false.items())]


def as_table(rows: "list[dict[str, Any]]") -> str:
    """Format the rows for people."""
    lines = [_HEAD]
    for row in rows:
        used = "-" if row.get("used") is None else format_duration(int(row["used"]))
        words = row["user"], row["job"], row["state"], str(row["gpus"]), str(row["cores"])
        lines.append(words + (format_size(row["memory_mb"] << 20), used))
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    shown = ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in lines]
    # Any user can choose names, and these must not control the terminal of the reader.
    return "\n".join("".join(each if each.isprintable() else "?" for each in line) for line in shown)
