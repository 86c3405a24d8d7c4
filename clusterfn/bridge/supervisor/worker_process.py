"""Start the worker by fork and exec: its pipes, its process group, what of Linux it needs, and on which CPUs it runs.

Without a scheduler a job gets as many CPUs as it asked for, other jobs' left alone if possible. A CPU in use is marked
by an abstract unix socket, seen by every user of the machine and gone with its holder. With too few free ones, jobs
share."""

import _socket  # the C half alone: `socket` costs 4 ms to import
import ctypes
import json
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

_RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE)


class WorkerProcess:
    """The worker's process.

    Attributes:
        pid: Its pid.
        out, err, report: The reading ends of its pipes, non-blocking.
    """

    def __init__(self, pid: int, out: int, err: int, report: int) -> None:
        self.pid = pid
        self.out = out
        self.err = err
        self.report = report


class Start:
    """What to start: `argv` (the report's descriptor is appended), where, on which CPUs, with `keep` left open.

    From the job's `spec` it uses `umask`, for what the function writes, and whether there are `secrets`.
    """

    def __init__(
        self, argv: "list[str]", env: "dict[str, str]", cwd: str, cpus: "Optional[Iterable[int]]",
        keep: "Iterable[int]", spec: "dict[str, Any]",
    ) -> None:  # fmt: skip
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.cpus = cpus
        self.keep = keep
        self.umask: int = spec.get("umask", 0o077)
        self.has_secrets = bool(spec.get("secrets"))


def start(wanted: Start) -> WorkerProcess:
    """Start the worker, its stdin empty.

    A program that cannot be started is said on the report pipe, as the worker itself would say it.
    """
    out, err, report = os.pipe(), os.pipe(), os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(wanted, parent, (out[1], err[1], report[1]))
    for pipe in (out, err, report):
        os.close(pipe[1])
        os.set_blocking(pipe[0], False)
    return WorkerProcess(pid, out[0], err[0], report[0])


def _become(wanted: Start, parent: int, pipes: "tuple[int, int, int]") -> None:
    out, err, report = pipes
    try:
        _prepare(wanted, parent, out, err)
        os.set_inheritable(report, True)
        os.execve(wanted.argv[0], wanted.argv + [str(report)], wanted.env)
    except BaseException as error:  # noqa: BLE001 - after a fork nothing may run on; the reason goes to the supervisor
        os.write(report, (json.dumps(_not_started(wanted.argv[0], wanted.cwd, error)) + "\n").encode())
    finally:
        os._exit(127)


def _prepare(wanted: Start, parent: int, out: int, err: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    for fd in wanted.keep:
        os.set_inheritable(fd, True)
    if wanted.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, wanted.cpus)
    if wanted.has_secrets:
        import resource

        # Keep the secrets out of a core dump; the function can raise the limit again. One byte: Linux then starts no
        # program that takes core dumps either, which it does with a limit of 0.
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))
    os.umask(wanted.umask)
    _enter_own_group()
    os.chdir(wanted.cwd)
    die_with_parent(signal.SIGKILL, parent)


def _enter_own_group() -> None:
    """Leave the supervisor's process group, so that a function which ends its own group ends no supervisor.

    Another process leads the group for a moment: a leader could not call setsid, as a function that daemonises does.
    """
    own, leader = os.getpid(), os.fork()
    if leader == 0:
        die_with_parent(signal.SIGKILL, own)
        signal.pause()
        os._exit(0)
    os.setpgid(leader, leader)
    os.setpgid(0, leader)
    os.kill(leader, signal.SIGKILL)
    os.waitpid(leader, 0)


def _not_started(program: str, cwd: str, error: BaseException) -> "dict[str, Optional[str]]":
    reason = error.strerror if isinstance(error, OSError) else str(error)
    where = getattr(error, "filename", None) or program
    if where == cwd:
        message, hint = "the working directory %s cannot be used: %s" % (cwd, reason), "correct cwd="
    else:
        message = "the environment's interpreter %s cannot be started: %s" % (program, reason)
        hint = "check that it exists on the machine that runs the job, on a file system that allows execution"
    return {"done": "environment", "message": message, "hint": hint, "stage": "environment"}


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> bool:
    """Adopt descendants whose parents end; False where the kernel (before 3.4, or not Linux) cannot."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_without_adopting(pid: int) -> None:
    """Kill a child whose own children are to be none of this process's, even where it adopts orphans."""
    adopts = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(adopts))
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)  # for a moment: an orphan of the job could be lost meanwhile
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except ChildProcessError:  # where SIGCHLD is ignored it is collected by itself
        pass
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, adopts.value)


def die_with_parent(signum: int, parent: int) -> None:
    """Be sent `signum` when the parent ends; at once if it is no longer `parent`."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def _prctl(option: int, value: int) -> bool:
    zero = ctypes.c_ulong(0)
    try:
        return bool(_LIBC.prctl(option, ctypes.c_ulong(value), zero, zero, zero) == 0)
    except AttributeError:  # no prctl: not Linux
        return False


class Cores:
    """The CPUs of one job, marked as in use until released.

    Attributes:
        chosen: Their numbers; None if the job may use all.
    """

    def __init__(self, wanted: int) -> None:
        self._held: "list[_socket.socket]" = []
        self.chosen = self._choose(wanted)

    def _choose(self, wanted: int) -> "Optional[set[int]]":
        if not hasattr(os, "sched_getaffinity"):  # not Linux
            return None
        allowed = sorted(os.sched_getaffinity(0))
        if wanted >= len(allowed):
            return None
        free: "list[int]" = []
        for cpu in allowed:
            if len(free) < wanted and self._take(cpu):
                free.append(cpu)
        shift = os.getpid() % len(allowed)
        others = [cpu for cpu in allowed[shift:] + allowed[:shift] if cpu not in free]
        return set((free + others)[:wanted])

    def release(self) -> None:
        """Remove the marks."""
        for mark in self._held:
            mark.close()

    def _take(self, cpu: int) -> bool:
        mark = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            mark.bind(b"\0clusterfn/cpu/%d" % cpu)
        except OSError:
            mark.close()
            return False
        self._held.append(mark)
        return True
