"""Start a program in a fork of the agent. `supervise.py` runs in it as it is: its interpreter has started already.

The agent keeps the modules of the bridge from their second use on, because loading them takes longer than a fork.
"""

import contextlib
import errno
import importlib
import os
import signal
import sys

from .handler import expand, failure_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

    from .frames import Header
    from .handler import AgentServices, Failure

# The agent handles these signals.
_SIGNALS = ("SIGCHLD", "SIGHUP", "SIGTERM")
# Python ignores these at its start, and a program that it becomes would inherit that. A fork has no such start: it goes
# on ignoring them, because it would else end at a write to a program that does not read.
_IGNORED = ("SIGPIPE", "SIGXFSZ")
_MOST_READ = 4096
# The package of the bridge.
BRIDGE = "_clusterfn"
_MODULES = (BRIDGE + ".bridge.supervisor.program", BRIDGE + ".bridge.supervisor.commands")
# It loads what each job needs.
_IN_PLACE = BRIDGE + ".bridge.supervisor.in_place"
_used_bridge = ""


def changed_environment(header: "Header") -> "Dict[str, str]":
    """Return this process's variables without those of `unset`'s prefixes.

    Those with a prefix that has a "!" before it in `unset` stay.
    """
    unset = header.get("unset") or ()
    dropped, kept = tuple(unset), tuple(prefix[1:] for prefix in unset if prefix.startswith("!"))
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped) or k.startswith(kept)}


def make_pipes(count: int) -> "List[Tuple[int, int]]":
    """Make pipes, all of them or none: an agent has few descriptors, and must keep those that it could have."""
    pipes: "List[Tuple[int, int]]" = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())
    except OSError:
        for fd in [end for pair in pipes for end in pair]:
            os.close(fd)
        raise
    return pipes


def detached(log: str) -> "Tuple[int, int, int]":
    """Return the stdin, stdout and stderr of a program that prints into a file."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), fd, fd
    except OSError:
        os.close(fd)
        raise


def runs_in_fork(header: "Header") -> bool:
    """Whether it is `supervise.py`, and can run in a fork."""
    return bool(header.get("fork")) and header["argv"][0] == sys.executable and is_whole(header["argv"][3])


def is_whole(program: str) -> bool:
    """Whether a program of the bridge is there, and not zeroed by a crash. If it is not, Python runs it and reports."""
    try:
        with open(program, "rb") as file:
            return file.read(1) not in (b"", b"\0")
    except OSError:
        return False


def use_bridge(folder: str) -> None:
    """Load the modules of a bridge that was used last time as well, unless those of another one are here."""
    global _used_bridge
    if _used_bridge == folder and BRIDGE not in sys.modules:
        sys.path.insert(0, folder)
        try:
            for name in _MODULES:
                importlib.import_module(name)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, its fork says so
            _forget_bridge()
        finally:
            sys.path.remove(folder)
    _used_bridge = folder


def has_bridge(folder: str) -> bool:
    """Whether the modules of this bridge are here."""
    return BRIDGE in sys.modules and os.path.join(folder, BRIDGE) in sys.modules[BRIDGE].__path__


def can_fork_jobs(folder: str) -> bool:
    """Whether the modules of this bridge are here, and those that its jobs need."""
    use_bridge(folder)
    if has_bridge(folder):
        try:
            importlib.import_module(_IN_PLACE)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, the job says so
            _forget_bridge()
    return has_bridge(folder)


def supervise(argv: "List[str]", job: "Optional[ForkedJob]" = None) -> int:
    """Run `supervise.py` with these arguments in a fork of the agent, which then ends with this status.

    Args:
        job: The job that this process is to be, if it is one.
    """
    sys.argv = argv
    folder = os.path.dirname(argv[0])
    if not has_bridge(folder):
        _forget_bridge()
    sys.path.insert(0, folder)
    if job is not None:
        return int(importlib.import_module(_IN_PLACE).run_in_place(job.script, job.folder, job.keeper))
    return int(importlib.import_module(_MODULES[0]).main(argv[1:]))


def _forget_bridge() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == BRIDGE]:
        del sys.modules[name]


class ForkedJob:
    """A job that starts in a fork of the agent, in the place of its job.sh.

    Attributes:
        script: The words of job.sh.
        argv: Those of its supervisor.
        folder: Of the job or element.
        keeper: The socket of the keeper of its workers, which is closed here; -1 for none.
    """

    def __init__(self, header: "Header", keeper: int) -> None:
        template = header["template"]
        self.script = header["argv"]
        self.folder = template["folder"]
        self.keeper = keeper
        self.argv = [*template["argv"][3:4], "run", template["folder"]]


class ChildProgram:
    """A program in a session of its own.

    The agent does not wait until the program is loaded. Where hundreds of processes share the cores, that takes
    seconds, in which no other request would be served.

    Args:
        header: Its `argv` and `cwd`; with `fork`, it may be `supervise.py`.
        env: Its variables.
        fds: Its stdin, stdout and stderr, which are closed here.
        on_exit: Takes its status. It comes last.
        on_loaded: Called once it is loaded.
        job: The job that it is, if that is not started by job.sh.

    Attributes:
        failure: Why it could not be loaded, known before `on_exit`.
    """

    failure: "Optional[Failure]" = None
    _is_over = False

    def __init__(
        self,
        agent: "AgentServices",
        header: "Header",
        env: "Dict[str, str]",
        fds: "Sequence[int]",
        on_exit: "Callable[[int], None]",
        on_loaded: "Callable[[], None]" = lambda: None,
        job: "Optional[ForkedJob]" = None,
    ) -> None:
        self._agent = agent
        self._argv = header["argv"]
        self._on_exit = on_exit
        self._on_loaded = on_loaded
        tell = self._failure_fd = -1
        if runs_in_fork(header):
            use_bridge(os.path.dirname(header["argv"][3]))
        fds = [*fds, job.keeper] if job is not None and job.keeper >= 0 else fds
        try:
            cwd = expand(header["cwd"]) if header.get("cwd") else "/"
            self._failure_fd, tell = os.pipe()
            self.pid = os.fork()
            if self.pid == 0:
                _become(header, cwd, env, fds, tell, job)
        except OSError:
            if self._failure_fd >= 0:
                os.close(self._failure_fd)
            raise
        finally:
            for fd in {*fds, tell} - {-1}:
                os.close(fd)
        os.set_blocking(self._failure_fd, False)
        agent.readers[self._failure_fd] = self._hear
        agent.children[self.pid] = self._exited

    @property
    def is_loading(self) -> bool:
        """Whether it is not known yet that it is loaded, or why it is not."""
        return self._failure_fd >= 0

    def _hear(self, fd: int) -> None:
        try:
            failure = os.read(fd, _MOST_READ)
        except BlockingIOError:
            return
        del self._agent.readers[fd]
        os.close(fd)
        self._failure_fd = -1
        if failure:
            number, path = failure.split(b" ", 1)
            self.failure = failure_of(OSError(int(number), os.strerror(int(number))), os.fsdecode(path))
        else:
            self._on_loaded()

    def _exited(self, status: int) -> None:
        if self.is_loading:
            self._hear(self._failure_fd)
        self._is_over = True
        self._on_exit(status)

    def signal(self, number: int) -> None:
        """Send a signal to all processes of its session; to itself if it has none yet."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # Once the child was reaped, the kernel may give its number to another process.
            if not self._is_over:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
        except PermissionError:
            return


def _become(
    header: "Header", path: str, env: "Dict[str, str]", fds: "Sequence[int]", tell: int, job: "Optional[ForkedJob]"
) -> "NoReturn":
    """Run the program in this process, in the folder `path`, and end it; `tell` takes why it cannot be loaded."""
    status = 1
    argv = header["argv"]
    try:
        # The fork has inherited the agent's wakeup pipe, into which its own signals must not write.
        signal.set_wakeup_fd(-1)
        execs = job is None and not runs_in_fork(header)
        for name in (*_SIGNALS, *(_IGNORED if execs else ())):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.setsid()
        for target, fd in enumerate(fds[:3]):
            os.dup2(fd, target)
        for name in os.listdir("/dev/fd"):
            if int(name) > 2 and int(name) not in (tell, *fds[3:]):
                with contextlib.suppress(OSError):
                    # The listing includes the descriptor that it used itself, which is closed by now.
                    os.close(int(name))
        try:
            os.chdir(path)
            if execs:
                path = argv[0]
                os.execvpe(path, argv, env)
        except OSError as error:
            number = error.errno or 0
            found = (os.path.exists(os.path.join(each, path)) for each in os.get_exec_path(env))
            if number == errno.EACCES and "/" not in path and not any(found):
                # It is nowhere, and a folder of PATH cannot be searched.
                number = errno.ENOENT
            os.write(tell, b"%d %s" % (number, os.fsencode(path)))
            os._exit(status)
        os.close(tell)
        os.environ.clear()
        os.environ.update(env)
        status = supervise(argv[3:] if job is None else job.argv, job)
    except BaseException:  # noqa: BLE001 - after a fork nothing may run on; the client gets the traceback
        import traceback

        # By its folder, the client knows that it is the bridge which cannot be loaded.
        sys.stderr.write("%s failed:\n" % " ".join(argv[3:4]))
        traceback.print_exc()
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            # Whatever fails, this process must not return into the loop and serve the client as a second agent.
            os._exit(status)
