"""Start the spooler of a queue, wake it, or replace one that hangs."""

import errno
import os
import signal
import sys
import time
from collections import namedtuple

from ..layout import INTERRUPTED, SUPERVISE, TURN
from ..supervisor import process_tree
from . import lease_names, machine, tickets
from .lease import leases_of_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .lease import Lease, Leases
    from .tickets import Queue

# The value of TURN if the supervisor is to have the environment made, and to leave the job in the queue. Any other says
# that it need not ask the queue of its own user.
ENVIRONMENT = "environment"
# Such another: this keeper (`lease`) has the lock of all admissions for ever.
KEPT = "kept="
# A job that another user must not pass from now on: its id, and its name, which counts until then.
FirstInLine = namedtuple("FirstInLine", ("job", "until_s", "name", "mark"))
_LOG = "spooler.log"
_DIES_S, _LOOK_S = 2.0, 0.01


def spool_name(queue: "Queue") -> str:
    """Return the name that the spooler of this queue holds."""
    import hashlib  # like subprocess, only who waits needs it

    return lease_names.spool(os.getuid(), hashlib.sha1(os.fsencode(queue.folder)).hexdigest()[:16])


def ensure_spooler(
    queue: "Queue", marks: "Leases", lease: str, bridge: str, first: "Optional[FirstInLine]" = None
) -> bool:
    """Wake the spooler of the queue, or start one; return whether one was started.

    A new one inherits the name that elects it, and that of the `first` job. One that a signal has stopped, or that has
    not looked at the queue for minutes, is killed first, so that two never run.
    """
    name = spool_name(queue)
    mark = marks.hold(name) or _replace_hung_spooler(name, marks)
    if mark is None:
        return False
    try:
        fds = [mark.fileno()] + ([first.mark.fileno()] if first else [])
        words = ["spool", queue.root, lease, str(fds[0])]
        words += [first.job, str(first.until_s), str(fds[1])] if first else []
        with open(os.path.join(machine.folder(queue.root), _LOG), "wb") as log:
            _start_apart(
                [sys.executable, "-I", "-S", os.path.join(bridge, SUPERVISE)] + words,
                stdout=log, stderr=log, cwd="/", env=environment_of(os.getppid()),
                pass_fds=fds, start_new_session=True,
            )  # fmt: skip
        return True
    finally:
        mark.close()


def _start_apart(argv: "list[str]", **how: "Any") -> None:
    """Start a process that is no descendant of this one: a supervisor ends all of its own with its job.

    Raises:
        OSError: It could not be started.
    """
    import subprocess  # like ctypes in `worker_process`: most jobs need no spooler

    from ..supervisor import worker_process

    reads, writes = os.pipe()
    own, between = os.getpid(), os.fork()
    if between == 0:
        try:
            worker_process.die_with_parent(signal.SIGKILL, own)
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, **how)
            os.write(writes, b"0")
            while True:  # until this process is ready to leave the new one to init
                signal.pause()
        except OSError as error:
            os.write(writes, b"%d" % (error.errno or errno.EIO))
        finally:
            os._exit(1)
    os.close(writes)
    told = os.read(reads, 16)
    os.close(reads)
    worker_process.end_without_adopting(between)
    if told != b"0":
        number = int(told or errno.EIO)
        raise OSError(number, os.strerror(number), argv[0])


def _replace_hung_spooler(name: str, marks: "Leases") -> "Optional[Lease]":
    """Kill a spooler that no longer serves, and take its name; None if it serves, and is awake now, or does not end."""
    held = marks.find(name)
    holder = marks.holder(held) if held else None
    pid = holder.pid if holder is not None and holder.uid == os.getuid() else 0
    if holder is not None:
        holder.close()
    late = lease_names.overdue(marks.binders(), name, machine.now_s()) if pid else None
    promised = marks.holder(late) if late else None
    if promised is not None:
        promised.close()
    hangs = promised is not None and promised.pid == pid
    if not pid or process_tree.state_of(pid) != process_tree.STOPPED and not hangs:
        return None
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + _DIES_S
    mark = None
    while mark is None and time.monotonic() < until:
        time.sleep(_LOOK_S)
        mark = marks.hold(name)
    return mark


def revive_spooler(root: str, bridge: str) -> None:
    """Queue what a restart of the machine has interrupted; start a spooler if tickets are left and none runs."""
    _requeue_interrupted(root)
    queue = tickets.Queue(root)
    ticket = next(filter(None, map(queue.of, queue.names())), None)
    if ticket is not None or queue.damaged():
        lease = "socket" if ticket is None else ticket.lease
        ensure_spooler(queue, leases_of_kind(lease), lease, bridge)


def resume_after_restart(root: str, bridge: str) -> None:
    """Queue what a restart of the machine has interrupted, and start a spooler for it; do nothing where nothing was."""
    if _requeue_interrupted(root):
        revive_spooler(root, bridge)


def _requeue_interrupted(root: str) -> bool:
    if not os.path.isdir(os.path.join(machine.folder(root), INTERRUPTED)):
        return False
    from . import restart  # few roots have such jobs

    return restart.requeue_interrupted(root)


def environment_of(pid: int) -> "dict[str, str]":
    """Return the variables with which a process was started: job.sh may have changed this one's own."""
    found = process_tree.environment_of(pid)
    variables = dict(os.environ) if found is None else found  # None: job.sh was killed
    return {name: value for name, value in variables.items() if name != TURN}
