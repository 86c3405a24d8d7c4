"""Starts processes of their own for the queue: a spooler, and the script of a job whose turn it is.

Called by `admission`, `spool`, `status`, and by every supervisor that ends.
"""

import os
import sys

from ...layout import SCRIPT, SUPERVISE
from . import machine, names, tickets
from . import marks as marking

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Optional

    from .marks import Mark, Marks
    from .tickets import Queue, Ticket

# In the environment of a job.sh whose turn has come: the supervisor need not ask the queue of its own user.
TURN = "CLUSTERFN_TURN"
_LOG = "spooler.log"


def spool_name(queue: "Queue") -> str:
    """The name that the spooler of this queue holds."""
    import hashlib  # like subprocess, only who waits needs it

    return names.spool(os.getuid(), hashlib.sha1(os.fsencode(queue.folder)).hexdigest()[:16])


def ensure(queue: "Queue", marks: "Marks", lease: str, bridge: str) -> None:
    """See that a spooler looks at the queue now: wake it, or start one, which inherits the name that elects it."""
    name = spool_name(queue)
    mark = marks.hold(name)
    if mark is None:
        marks.knock(name)
        return
    try:
        _start(queue, mark, lease, bridge)
    finally:
        mark.close()


def _start(queue: "Queue", mark: "Mark", lease: str, bridge: str) -> None:
    import subprocess

    words = ["spool", queue.root, lease, str(mark.fileno())]
    with open(os.path.join(machine.folder(queue.root), _LOG), "wb") as log:
        subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.join(bridge, SUPERVISE)] + words,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment_of(os.getppid()),
            pass_fds=[mark.fileno()], start_new_session=True,
        )  # fmt: skip


def revive(root: str, bridge: str) -> None:
    """See that tickets which are left have a spooler."""
    queue = tickets.Queue(root)
    ticket = next(filter(None, map(queue.of, queue.names())), None)
    if ticket is not None:
        ensure(queue, marking.of(ticket.lease), ticket.lease, bridge)


def environment_of(pid: int) -> "dict[str, str]":
    """What a process found around itself when it was started: this one's own may have been changed by job.sh."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0") if entry]
    except OSError:  # job.sh was killed
        return {name: value for name, value in os.environ.items() if name != TURN}
    return {name: value for name, _, value in pairs if name != TURN}


def script(queue: "Queue", ticket: "Ticket") -> "Optional[subprocess.Popen[Any]]":
    """Start a job as the agent does; None if it has no ticket any more."""
    import subprocess

    told = queue.told(ticket.job)
    if told is None:
        return None
    number = [] if ticket.element is None else [str(ticket.element)]
    with open(tickets.log_of(ticket), "ab") as log:
        return subprocess.Popen(
            ["/bin/sh", os.path.join(ticket.home, SCRIPT)] + number,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ticket.home, env=dict(told["env"], **{TURN: "1"}),
            start_new_session=True,
        )  # fmt: skip
