"""Run a program with a time limit: the environment's Python, a script of a package, or the host's conda."""

import contextlib
import os
import signal
import subprocess
import time

from ..supervisor import tree
from ..supervisor.stall import Stall
from ..supervisor.text import duration, last_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping, Optional

_LEAKS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")
_LEAKING_PREFIXES = ("PYTHON", "CONDA_", "_CE_")
_TURN_S = 0.1


class ProgramLimit:
    """How long a program may run; one that hangs would block everyone who waits for the environment.

    Args:
        idle_s: For how many seconds it may print nothing and use no CPU time.
        most_s: How many seconds it may take in all; None for no limit.
    """

    def __init__(self, idle_s: float, most_s: "Optional[float]" = None) -> None:
        self._idle_s, self._most_s = idle_s, most_s
        self._stall = Stall(idle_s)
        self._began = time.monotonic()

    def over(self, pid: int, printed: int) -> str:
        """Describe how the limit is exceeded; "" while it is not."""
        if self._most_s is not None and time.monotonic() - self._began > self._most_s:
            return "it took longer than %s" % duration(self._most_s)
        if os.path.exists(tree.PROC) and self._stall.over([pid] + tree.descendants(pid), 0.0, printed):
            return "it printed nothing and used no CPU time for %s" % duration(self._idle_s)
        return ""


class ProgramFailed(Exception):
    """The program failed, or exceeded its time limit.

    Attributes:
        evidence: Its last lines.
    """

    def __init__(self, message: str, output: bytes) -> None:
        super().__init__(message)
        self.evidence = last_lines(output)


def run_in_environment(
    argv: "list[str]", prefix: str, more: "Mapping[str, str]", stopping: "Callable[[], None]", limit: ProgramLimit
) -> bytes:
    """Run a program in the environment; return what it printed on both streams.

    Raises:
        ProgramFailed: It could not be started, its status is not 0, or it was ended because it took too long.
    """
    return run_program(argv, _environment(prefix, more), stopping, limit)


def run_program(
    argv: "list[str]", environ: "Mapping[str, str]", stopping: "Callable[[], None]", limit: ProgramLimit
) -> bytes:
    """Run a program with these variables and no others."""
    read, write = os.pipe()
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=write, stderr=write, env=dict(environ), cwd="/",
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        os.close(read)
        raise ProgramFailed("%s cannot be started: %s" % (argv[0], error), b"") from error
    finally:
        os.close(write)
    with os.fdopen(read, "rb", 0) as pipe:
        output = _drain(process, pipe.fileno(), stopping, limit)
    if process.returncode:
        raise ProgramFailed("it ended with %s" % _status(process.returncode), output)
    return output


def _drain(process: "subprocess.Popen[bytes]", fd: int, stopping: "Callable[[], None]", limit: ProgramLimit) -> bytes:
    output, printed = b"", 0
    os.set_blocking(fd, False)
    try:
        while True:
            ended = process.poll() is not None
            new = _read(fd)
            output, printed = (output + new)[-1000000:], printed + len(new)
            if ended:
                return output
            stopping()
            too_long = limit.over(process.pid, printed)
            if too_long:
                raise ProgramFailed(too_long + ", and was ended", output)
            _wait(process)
    finally:
        if process.poll() is None:
            kill_session(process)


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program that leads a session, and all processes that it has started."""

    def living() -> "list[int]":
        found = {process.pid, *tree.descendants(process.pid), *tree.in_session(process.pid)}
        return [pid for pid in found if tree.is_alive(pid)]

    tree.end(living, process.poll)
    with contextlib.suppress(OSError):  # it is gone; where there is no /proc it is not
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(_TURN_S)
    except subprocess.TimeoutExpired:
        return


def _read(fd: int) -> bytes:
    data = b""
    try:
        for block in iter(lambda: os.read(fd, 65536), b""):
            data += block
    except BlockingIOError:
        return data
    return data


def _environment(prefix: str, more: "Mapping[str, str]") -> "dict[str, str]":
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _LEAKS and not name.startswith(_LEAKING_PREFIXES)
    }
    path = os.path.join(prefix, "bin") + os.pathsep + kept.get("PATH", "/usr/bin:/bin")
    return dict(kept, PATH=path, CONDA_PREFIX=prefix, PYTHONNOUSERSITE="1", **more)


def _status(code: int) -> str:
    return "signal %d" % -code if code < 0 else "status %d" % code
