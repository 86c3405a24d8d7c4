"""The supervisor's other commands: conclude or change a job, fail items of a group, and ask about a root.

job.sh calls `after`, the spooler and the agent the others; docs/reference/protocol.md says what each takes and prints.
"""

import json
import os
import sys

from ..layout import ATTEMPTS, CLAIM, SPEC
from ..queue import launch, report, spooler
from ..queue.machine import demand_of
from ..queue.tickets import Queue
from . import conclude, expire, group, listing, notify, publish, shell, takers
from .job import JobFolder, each_folder
from .verdict import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def _alter(folder: str) -> int:
    """Change what a waiting job asks for: its time, its memory, and its place among the jobs of its user.

    Read the change as JSON on stdin, and print `{"altered": bool}`: false if the job has begun, and keeps what it has.
    A scheduler with nodes has been told before. In clusterfn's own queue, the tickets of the job change as well.
    """
    change = json.loads(sys.stdin.read())
    job = JobFolder(folder)
    is_altered = not _has_begun(job)
    if is_altered:
        path = job.path(SPEC)
        with open(path, encoding="utf-8") as file:
            spec = dict(json.load(file))
        _apply(change, spec)
        publish.replace(path, json.dumps(spec, indent=1).encode())
        if not job.scheduler.has_nodes:
            waiting = Queue(job.root)
            for name in waiting.names():
                fields = waiting.fields(name) if name.partition(".")[0] == job.id else None
                if fields is not None:
                    asked, priority = dict(demand_of(spec)._asdict()), spec.get("priority", 0)
                    fields.update(asked=asked, resources=spec["resources"], priority=priority)
                    publish.replace(os.path.join(waiting.folder, name), json.dumps(fields).encode())
            launch.revive_spooler(job.root, spec["bridge"])
        # A job that has begun meanwhile may have read what it asked for before.
        is_altered = not _has_begun(job)
    sys.stdout.write(json.dumps({"altered": is_altered}) + "\n")
    return 0


def _apply(change: "dict[str, Any]", spec: "dict[str, Any]") -> None:
    asked, group = spec["resources"], spec.get("group")
    # The time of an element is for several items.
    if group and group.get("element_s") and asked.get("time_s") and "time_s" in change:
        group["element_s"] *= change["time_s"] / asked["time_s"]
    asked.update((name, change[name]) for name in ("time_s", "memory_bytes") if name in change)
    if "priority" in change:
        spec["priority"] = change["priority"]


def _has_begun(job: JobFolder) -> bool:
    """Whether the job, or an element of a group, has been claimed."""
    names = (CLAIM, ATTEMPTS)
    return any(os.path.exists(os.path.join(each, name)) for each in each_folder(job.folder) for name in names)


def _bridge() -> str:
    return os.path.dirname(os.path.abspath(sys.argv[0]))


def _list(root: str, after: str = "") -> int:
    launch.revive_spooler(root, _bridge())
    return listing.listing(root, after)


def _top(root: str, lease: str, seconds: str, looks: str) -> int:
    # This import is late, because few people ask for it.
    from ..queue import overview

    return overview.print_looks(root, lease, float(seconds), int(looks))


def _tunnel(port: str) -> int:
    # This import is late, because no other command carries bytes.
    from ..kernel import tunnel

    return tunnel.carry_to_port(int(port))


_ANY = 1 << 30
# A command -> its words for people, how many it takes at least and at most, and its function.
_COMMANDS: "dict[str, tuple[str, int, int, Callable[..., int]]]" = {
    "after": ("JOB STATUS", 2, 2, conclude.conclude_for_dead),
    "conclude": ("JOB", 1, 1, conclude.conclude_on_request),
    "end": ("JOB", 1, 1, conclude.end_stuck),
    "bury": ("ELEMENT", 1, 1, group.fail_unfinished_items),
    "withdraw": ("ROOT HOST", 2, 2, conclude.withdraw_jobs),
    "alter": ("JOB", 1, 1, _alter),
    "notify": ("JOB", 1, 1, notify.tell_again),
    "tunnel": ("PORT", 1, 1, _tunnel),
    "register": ("GROUP NUMBER FIRST COUNT BESIDES", 5, 5, takers.register_array),
    "list": ("ROOT [AFTER]", 1, 2, _list),
    "gpus": ("ROOT LEASE", 2, 2, report.print_gpus),
    "users": ("[LEASE]", 0, 1, report.print_users),
    "clean": ("ROOT KEEP OLDER dry", 4, 4, expire.clean),
    "queue": ("ROOT", 1, 1, lambda root: report.print_queue(root, _bridge())),
    "top": ("ROOT LEASE SECONDS LOOKS", 4, 4, _top),
    "sizes": ("ROOT [JOB...]", 1, _ANY, expire.print_sizes),
    "remove": ("ROOT dry [JOB...]", 2, _ANY, expire.remove_jobs),
    "shell": ("JOB FACTS", 2, 2, shell.start_shell),
    "spool": (
        "ROOT LEASE FD [JOB UNTIL FD]",
        3,
        _ANY,
        lambda root, lease, fd, *first: spooler.run_spooler(root, lease, int(fd), *first),
    ),
}
# What `program` runs itself, as jobs wait for it.
_ELSEWHERE = "run JOB [STATUS] | node JOB ATTEMPT [ITEM...] | hold FOLDER FACTS | enter FOLDER WANTED SUBMIT..."


def run_command(argv: "list[str]") -> int:
    """Run one command; return the exit code of the process."""
    words = argv[1:]
    _, least, most, function = _COMMANDS.get("".join(argv[:1]), ("", _ANY, 0, len))
    if least <= len(words) <= most:
        return function(*words)
    known = " | ".join("%s %s" % (name, _COMMANDS[name][0]) for name in _COMMANDS)
    say("usage: supervise.py %s | %s" % (_ELSEWHERE, known))
    return 2
