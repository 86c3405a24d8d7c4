"""Start the spooler of a queue, wake it, or replace one that hangs; requeue the jobs that a restart has interrupted."""

import errno
import os
import signal
import sys
import time

from ..agent.libc import die_with_parent, end_without_adopting
from ..layout import INTERRUPTED, SPOOLER_LOG, SUPERVISE
from ..supervisor import process_tree
from ..supervisor.attempt import final_attempt, release_claim
from ..supervisor.job import DamagedFile, JobFolder
from ..supervisor.process_tree import boot_id
from ..supervisor.verdict import log_line
from . import lease_names, machine, tickets
from .lease import AdmissionLock, Leases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .lease import Lease
    from .tickets import Queue

# The value of TURN if the supervisor is to have the environment made, and to leave the job in the queue. Any other says
# that it need not ask the queue of its own user.
ENVIRONMENT = "environment"
ITS_TURN = "turn"
_DIES_S = 2.0
_LOOK_S = 0.01
_RESTARTED = "the machine was restarted"


def spool_name(queue: "Queue") -> str:
    """Return the name that the spooler of this queue holds."""
    # This import is late, because only a job that waits needs it. `hashlib` would load OpenSSL for 5 ms.
    try:
        from _sha1 import sha1  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha1
    digest: str = sha1(os.fsencode(queue.folder)).hexdigest()
    return lease_names.spool(os.getuid(), digest[:16])


def ensure_spooler(queue: "Queue", bridge: str) -> None:
    """Wake the spooler of the queue, or start one, which inherits the name that elects it.

    One that a signal has stopped is killed first, so that two never run.
    """
    name = spool_name(queue)
    leases = Leases()
    own_lease = leases.hold(name) or _replace_stopped_spooler(name, leases)
    if own_lease is None:
        return
    try:
        words = ["spool", queue.root, str(own_lease.fileno())]
        with open(os.path.join(machine.folder(queue.root), SPOOLER_LOG), "wb") as log:
            _start_apart(
                [sys.executable, "-I", "-S", os.path.join(bridge, SUPERVISE)] + words,
                stdout=log,
                stderr=log,
                cwd="/",
                env=tickets.environment_of(os.getppid()),
                pass_fds=[own_lease.fileno()],
                start_new_session=True,
            )
    finally:
        own_lease.close()


def _start_apart(argv: "list[str]", **how: "Any") -> None:
    """Start a process that is no descendant of this one, whose supervisor would end it; may raise OSError."""
    # This import is late, because most jobs need no spooler.
    import subprocess

    reads, writes = os.pipe()
    own = os.getpid()
    between = os.fork()
    if between == 0:
        try:
            die_with_parent(signal.SIGKILL, own)
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, **how)
            os.write(writes, b"0")
            # Only the parent may end this process, so that init adopts the spooler and not the supervisor.
            while True:
                signal.pause()
        except OSError as error:
            os.write(writes, b"%d" % (error.errno or errno.EIO))
        finally:
            os._exit(1)
    os.close(writes)
    status = os.read(reads, 16)
    os.close(reads)
    end_without_adopting(between)
    if status != b"0":
        number = int(status or errno.EIO)
        raise OSError(number, os.strerror(number), argv[0])


def _replace_stopped_spooler(name: str, leases: Leases) -> "Optional[Lease]":
    """Kill a spooler that is stopped, and take its name; None if it is not, and is awake now, or does not end."""
    pids = [pid for pid in _spoolers(name, leases) if process_tree.state_of(pid) == process_tree.STOPPED]
    process_tree.send_signal(pids, signal.SIGKILL)
    until = time.monotonic() + _DIES_S
    lease_held = None
    while pids and lease_held is None and time.monotonic() < until:
        time.sleep(_LOOK_S)
        lease_held = leases.hold(name)
    return lease_held


def _spoolers(name: str, leases: Leases) -> "list[int]":
    """Return the process that holds the name of a spooler, if it is this user's."""
    held = leases.find(name)
    holder = leases.holder(held) if held else None
    if holder is None:
        return []
    holder.close()
    return [holder.pid] if holder.pid and holder.uid == os.getuid() else []


def revive_spooler(root: str, bridge: str) -> None:
    """Queue what a restart of the machine has interrupted; start a spooler if tickets are left and none runs."""
    requeue_interrupted(root)
    queue = tickets.Queue(root)
    if any(queue.of(job) is not None for job in queue.each_name()):
        ensure_spooler(queue, bridge)


def resume_after_restart(root: str, bridge: str) -> None:
    """Queue what a restart of the machine has interrupted, and start a spooler for it; do nothing where nothing was."""
    if requeue_interrupted(root):
        revive_spooler(root, bridge)


def requeue_interrupted(root: str) -> bool:
    """Put each job into the queue that ran when this machine was restarted; once, even if several processes try.

    While a job runs whose `requeue=` says so, the ticket with which it would wait is kept in another folder. After a
    restart, whatever looks at the queue next moves it back: a call, `clusterfn jobs`, or `supervise.py queue`.

    Returns:
        Whether there was one.
    """
    if not os.path.isdir(os.path.join(machine.folder(root), INTERRUPTED)):
        return False
    kept = tickets.kept_aside(root)
    boot = boot_id()
    requeued = False
    for job in kept.names():
        fields = kept.fields(job)
        if fields is None or fields["boot"] == boot:
            continue
        with AdmissionLock(Leases()):
            try:
                # Another process may have requeued the job before this one held the lock, and the job may run by now.
                fields = kept.fields(job)
                if fields is not None and fields["boot"] != boot:
                    _requeue(root, fields)
                    kept.remove(job)
                    requeued = True
            except FileNotFoundError:
                # The job's folder was removed.
                kept.remove(job)
            except (OSError, DamagedFile) as error:
                # A job that cannot be read now must not keep the others from being requeued.
                log_line("the interrupted job %s was not requeued: %s" % (job, error))
    return requeued


def _requeue(root: str, fields: "dict[str, Any]") -> None:
    job = JobFolder(fields["folder"])
    if job.cancelled() or final_attempt(job) is not None:
        return
    # A ticket counts only while its job has no claim.
    release_claim(job)
    now = machine.now_ns()
    # The job has begun once, so the time limit for its first start no longer applies.
    tickets.Queue(root).write(dict(fields, submitted=now, reason=_RESTARTED, queue_timeout_s=None))
    tickets.record_event(root, tickets.TICKET, job.id, asked=fields["asked"], submitted=now, reason=_RESTARTED)
