"""Starts processes of their own for the queue: a spooler, and the script of a job whose turn it is."""

import os
import signal
import sys
import time
from collections import namedtuple

from ..layout import SCRIPT, SUPERVISE
from ..supervisor import process_tree
from . import lease_names, machine, tickets
from .lease import leases_of_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Optional

    from .lease import Lease, Leases
    from .tickets import Queue, Ticket

# In the environment of a job.sh whose turn has come: the supervisor need not ask the queue of its own user. With the
# value ENVIRONMENT it has only the environment made, and leaves the job in the queue.
TURN = "CLUSTERFN_TURN"
ENVIRONMENT = "environment"
# A job that another user must not pass from now on: its id, and its name, which counts until then.
FirstInLine = namedtuple("FirstInLine", ("job", "until_s", "name", "mark"))
_LOG = "spooler.log"
_STOPPED = "T"  # what /proc says after SIGSTOP
_DIES_S, _LOOK_S = 2.0, 0.01


def spool_name(queue: "Queue") -> str:
    """The name that the spooler of this queue holds."""
    import hashlib  # like subprocess, only who waits needs it

    return lease_names.spool(os.getuid(), hashlib.sha1(os.fsencode(queue.folder)).hexdigest()[:16])


def ensure_spooler(
    queue: "Queue", marks: "Leases", lease: str, bridge: str, first: "Optional[FirstInLine]" = None
) -> bool:
    """See that a spooler looks at the queue now: wake it, or start one, which inherits the name that elects it, and
    that of the `first` job; whether one was started.

    One that a signal has stopped, or that has not looked at the queue for minutes, is killed first: it must not go on
    beside another.
    """
    name = spool_name(queue)
    mark = marks.hold(name) or _instead_of(name, marks)
    if mark is None:
        return False
    try:
        _start(queue, mark, lease, bridge, first)
        return True
    finally:
        mark.close()


def _instead_of(name: str, marks: "Leases") -> "Optional[Lease]":
    """The name of a spooler that serves no more; None if it serves, and is awake now, or does not end."""
    holder = marks.holder(name)
    pid = holder.pid if holder is not None and holder.uid == os.getuid() else 0
    if holder is not None:
        holder.close()
    late = lease_names.overdue(marks.names(), name, machine.now_s()) if pid else None
    promised = marks.holder(late) if late else None
    if promised is not None:
        promised.close()
    hangs = promised is not None and promised.pid == pid
    if not pid or process_tree.state_of(pid) != _STOPPED and not hangs:
        return None
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + _DIES_S
    mark = None
    while mark is None and time.monotonic() < until:
        time.sleep(_LOOK_S)
        mark = marks.hold(name)
    return mark


def _start(queue: "Queue", mark: "Lease", lease: str, bridge: str, first: "Optional[FirstInLine]") -> None:
    import subprocess

    fds = [mark.fileno()] + ([first.mark.fileno()] if first else [])
    words = ["spool", queue.root, lease, str(fds[0])]
    words += [first.job, str(first.until_s), str(fds[1])] if first else []
    with open(os.path.join(machine.folder(queue.root), _LOG), "wb") as log:
        subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.join(bridge, SUPERVISE)] + words,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment_of(os.getppid()),
            pass_fds=fds, start_new_session=True,
        )  # fmt: skip


def revive_spooler(root: str, bridge: str) -> None:
    """See that tickets which are left have a spooler."""
    queue = tickets.Queue(root)
    ticket = next(filter(None, map(queue.of, queue.names())), None)
    if ticket is not None or queue.damaged():
        lease = "socket" if ticket is None else ticket.lease
        ensure_spooler(queue, leases_of_kind(lease), lease, bridge)


def environment_of(pid: int) -> "dict[str, str]":
    """The variables with which a process was started: job.sh may have changed this one's own."""
    found = process_tree.environment_of(pid)
    variables = dict(os.environ) if found is None else found  # None: job.sh was killed
    return {name: value for name, value in variables.items() if name != TURN}


def start_script(queue: "Queue", ticket: "Ticket", turn: str = "1") -> "Optional[subprocess.Popen[Any]]":
    """Start a job as the agent does; None if it has no ticket any more."""
    import subprocess

    told = queue.told(ticket.job)
    if told is None:
        return None
    number = [] if ticket.element is None else [str(ticket.element)]
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # a FIFO without a reader refuses, and does not wait
    with open(os.open(tickets.log_of(ticket), flags, 0o600), "ab") as log:
        os.set_blocking(log.fileno(), True)
        return subprocess.Popen(
            ["/bin/sh", os.path.join(ticket.home, SCRIPT)] + number,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ticket.home, env=dict(told["env"], **{TURN: turn}),
            start_new_session=True,
        )  # fmt: skip
