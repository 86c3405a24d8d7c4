"""The supervisor's other commands: conclude a job, fail items of a group, and ask about a root.

job.sh calls `after`, the spooler and the agent the others; docs/reference/protocol.md says what each takes and prints.
"""

import os
import sys

from ..queue import launch, report, spooler, users
from . import alter, conclude, end_stuck, expire, group, listing, notify, shell, takers
from .verdict import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


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
    "end": ("JOB", 1, 1, end_stuck.end_stuck),
    "bury": ("ELEMENT", 1, 1, group.fail_unfinished_items),
    "withdraw": ("ROOT HOST", 2, 2, conclude.withdraw_jobs),
    "alter": ("JOB", 1, 1, alter.alter_job),
    "notify": ("JOB", 1, 1, notify.tell_again),
    "tunnel": ("PORT", 1, 1, _tunnel),
    "register": ("GROUP NUMBER FIRST COUNT BESIDES", 5, 5, takers.register_array),
    "list": ("ROOT [AFTER]", 1, 2, _list),
    "gpus": ("ROOT LEASE", 2, 2, report.print_gpus),
    "users": ("[LEASE]", 0, 1, users.print_users),
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
