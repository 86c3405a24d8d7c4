"""Start the worker by fork and exec: its pipes, its process group, what of Linux it needs, and on which CPUs it runs.

It loads its own code first, and waits until the supervisor lets it begin.

Without a scheduler a job gets as many CPUs as it asked for, other jobs' left alone if possible. A CPU in use is marked
by an abstract unix socket, seen by every user of the machine and gone with its holder. With too few free ones, jobs
share."""

# The C half alone, because `socket` costs 4 ms.
import _socket
import json
import os
import signal
import sys

from ..agent.libc import die_with_parent, enter_own_group
from .environ import changed_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Optional, Sequence


class WorkerProcess:
    """A worker that loads its code and then waits for `begin`, with the variables that it gets last.

    Attributes:
        env: The variables with which it has started.
        out, err, report: The reading ends of its pipes, non-blocking.
        is_loaded: Whether it is a fork, and has loaded its code before.

    Args:
        pipes: The reading ends of stdout, stderr and the report.
        control: The socket through which it is allowed to begin. If that closes before, it ends.
    """

    is_loaded = False

    def __init__(self, env: "dict[str, str]", pid: int, pipes: "Sequence[int]", control: "_socket.socket") -> None:
        self.pid = pid
        self.out, self.err, self.report = pipes
        self.env = env
        self._control = control

    def begin(
        self, cwd: str, env: "dict[str, str]", cpus: "Optional[Iterable[int]]" = None, keep: "Sequence[int]" = ()
    ) -> "dict[str, Optional[str]]":
        """Let it run the call.

        Args:
            cpus: The only ones that it may use; None for all.
            keep: Descriptors that it holds as long as it lives.

        Returns:
            The variables that it gets only now; None for one that it loses.
        """
        from .text import portable

        late = {name: env.get(name) for name in changed_names(self.env, env)}
        line = {"cwd": portable(cwd), "env": portable(late), "cpus": sorted(cpus or ())}
        self.order((json.dumps(line) + "\n").encode(), keep)
        self._control.close()
        return late

    def order(self, line: bytes, files: "Sequence[int]" = ()) -> bool:
        """Send it a line, and these descriptors; False if it has ended, and is judged by what it said."""
        return send_line(self._control, line, files)

    def detach_control(self) -> "_socket.socket":
        """Return its socket, for the caller to close."""
        control, self._control = self._control, _socket.socket(_socket.AF_UNIX)
        return control

    def give_no_more(self) -> None:
        """Let it end after its last order."""
        self._control.close()

    def close(self) -> None:
        self._control.close()
        for fd in (self.out, self.err, self.report):
            if fd >= 0:
                os.close(fd)

    def dismiss(self) -> None:
        """End it without waiting for that: another one is needed, or none. Its parent collects it with its others."""
        self.close()
        if self._is_child():
            # It is not collected yet, so no other process has its pid.
            os.kill(self.pid, signal.SIGKILL)

    def _is_child(self) -> bool:
        """Whether it lives, or is still to be collected."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True


def send_line(control: "_socket.socket", line: bytes, files: "Sequence[int]") -> bool:
    """Send a line and these descriptors; False if the other side has ended."""
    packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in files)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if files else []
    data = memoryview(line)
    try:
        data = data[control.sendmsg([data], rights) :]
        while len(data):
            data = data[control.send(data) :]
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def launch(argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> WorkerProcess:
    """Start the worker, its stdin empty.

    A program that cannot be started is said on the report pipe, as the worker itself would say it.

    Args:
        argv: What to start; the descriptors of the report and of `begin` are appended.
        env: Its variables. Some may still change (`environ.may_still_get`).
        cwd: Where the interpreter starts, which makes relative paths of its variables absolute.
        spec: The job's: `umask`, for what the function writes, and whether there are `secrets`.

    Raises:
        OSError: No process, pipe or socket can be had.
    """
    parent = os.getpid()
    with Pipes() as pipes:
        pid = os.fork()
        if pid == 0:
            _become(argv, env, cwd, spec, parent, pipes.theirs)
        return pipes.worker(env, pid)


class WorkerSource:
    """Where a job's workers come from: each is started here.

    Attributes:
        is_alone: Whether another process forks them, and has said that nothing descends from it now.
    """

    is_alone = False

    @property
    def fd(self) -> int:
        """The descriptor that becomes readable when another process says how a worker ended; -1 for none."""
        return -1

    def launch(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> WorkerProcess:
        """Return a worker as the function `launch` does."""
        return launch(argv, env, cwd, spec)

    def roots(self) -> "list[int]":
        """Return other processes than this one whose descendants are the job's."""
        return []

    def collected(self) -> "Iterable[tuple[int, int, Any]]":
        """Return pid, status and usage of the job's processes that another process has collected."""
        return ()

    def close(self) -> None:
        """End what was started for workers that do not come any more."""


class Pipes:
    """The pipes of a worker: what it prints, its report, and the socket through which it is allowed to begin.

    On exit the worker's ends are closed here, and ours too unless `worker` has passed them on.

    Attributes:
        theirs: The worker's ends, in this order: stdout, stderr, report, control.

    Raises:
        OSError: No pipe or socket can be had.
    """

    def __init__(self) -> None:
        self.theirs: "list[int]" = []
        self._ours: "list[int]" = []
        try:
            for _ in range(3):
                ours, theirs = os.pipe()
                self._ours.append(ours)
                self.theirs.append(theirs)
            control, begins = _socket.socketpair()
            self._ours.append(control.detach())
            self.theirs.append(begins.detach())
        except OSError:
            self.__exit__()
            raise

    def __enter__(self) -> "Pipes":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self.theirs + self._ours:
            os.close(fd)

    def worker(self, env: "dict[str, str]", pid: int) -> WorkerProcess:
        """Return the worker, which has our ends from now on."""
        return WorkerProcess(env, pid, *self.detach_ours())

    def detach_ours(self) -> "tuple[list[int], _socket.socket]":
        """Return our ends, which stay open: the reading ones, and the socket."""
        *reading, control = self._ours
        self._ours = []
        for fd in reading:
            os.set_blocking(fd, False)
        return reading, _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, control)

    def detach_theirs(self) -> "list[int]":
        """Return the worker's ends, which stay open, in a process that was forked to have them, and close ours."""
        for fd in self._ours:
            os.close(fd)
        theirs, self.theirs, self._ours = self.theirs, [], []
        return theirs


def _become(
    argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]", parent: int, fds: "Sequence[int]"
) -> None:
    out, err, report, begins = fds
    try:
        _prepare(cwd, spec, parent, out, err)
        for fd in (report, begins):
            os.set_inheritable(fd, True)
        os.execve(argv[0], [*argv, str(report), str(begins)], env)
    except BaseException as error:  # noqa: BLE001 - after a fork nothing may run on; the reason goes to the supervisor
        os.write(report, (json.dumps(_not_started(argv[0], cwd, error)) + "\n").encode())
    finally:
        os._exit(127)


def _prepare(cwd: str, spec: "Mapping[str, Any]", parent: int, out: int, err: int) -> None:
    """Let a fork of the supervisor have what a worker has: its limits, its group, its folder and what it prints to."""
    start_afresh(out, err)
    if spec.get("secrets"):
        import resource

        # Keep the secrets out of a core dump; the function can raise the limit again. One byte: Linux then starts no
        # program that takes core dumps either, which it does with a limit of 0.
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))
    os.umask(spec.get("umask", 0o077))
    enter_own_group()
    os.chdir(cwd)
    die_with_parent(signal.SIGKILL, parent)


def start_afresh(out: int, err: int) -> None:
    """Restore in a fork what a program expects: the signals, an empty stdin, and these files for what it prints."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.close(null)


def _not_started(program: str, cwd: str, error: BaseException) -> "dict[str, Optional[str]]":
    import errno

    reason = error.strerror if isinstance(error, OSError) else str(error)
    where = getattr(error, "filename", None) or program
    if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        message = "no process can be started for the function: %s" % reason
        hint = "your user has too many processes or open files on that machine, or its memory is full; try again later"
    elif where == cwd:
        message, hint = "the working directory %s cannot be used: %s" % (cwd, reason), "correct cwd="
    else:
        message = "the environment's interpreter %s cannot be started: %s" % (program, reason)
        hint = "check that it exists on the machine that runs the job, on a file system that allows execution"
    return {"done": "environment", "message": message, "hint": hint, "stage": "environment"}


class Cores:
    """The CPUs of one job, marked as used until released; `chosen` is None if it may use all."""

    def __init__(self, wanted: int) -> None:
        self._held: "list[_socket.socket]" = []
        self.chosen = self._choose(wanted)

    def _choose(self, wanted: int) -> "Optional[set[int]]":
        # Only Linux says which CPUs a process may use.
        if not hasattr(os, "sched_getaffinity"):
            return None
        allowed = sorted(os.sched_getaffinity(0))
        if wanted >= len(allowed):
            return None
        free: "list[int]" = []
        for cpu in allowed:
            if len(free) < wanted and self._claim(cpu):
                free.append(cpu)
        shift = os.getpid() % len(allowed)
        others = [cpu for cpu in allowed[shift:] + allowed[:shift] if cpu not in free]
        return set((free + others)[:wanted])

    def release(self) -> None:
        for name_socket in self._held:
            name_socket.close()

    def _claim(self, cpu: int) -> bool:
        name_socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            name_socket.bind(b"\0clusterfn/cpu/%d" % cpu)
        except OSError:
            name_socket.close()
            return False
        self._held.append(name_socket)
        return True
