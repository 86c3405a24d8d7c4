"""Runs a program of the new environment: its Python, or a package's script; or the host's conda.

Called by `verify`, `postlink`, `activation` and `condas`.
"""

import os
import subprocess

from ..supervisor.text import last_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

_LEAKS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")
_LEAKING_PREFIXES = ("PYTHON", "CONDA_", "_CE_")
_TURN_S = 0.1


class Ended(Exception):
    """It ended badly.

    Attributes:
        evidence: Its last lines.
    """

    def __init__(self, message: str, output: bytes) -> None:
        super().__init__(message)
        self.evidence = last_lines(output)


def run(argv: "list[str]", prefix: str, more: "Mapping[str, str]", stopping: "Callable[[], None]") -> bytes:
    """Run it in the environment; what it printed on both streams.

    Raises:
        Ended: It could not be started, or its status is not 0.
    """
    return run_with(argv, _environment(prefix, more), stopping)


def run_with(argv: "list[str]", environ: "Mapping[str, str]", stopping: "Callable[[], None]") -> bytes:
    """Run it with these variables and no others."""
    read, write = os.pipe()
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=write, stderr=write, env=dict(environ), cwd="/",
        )  # fmt: skip
    except OSError as error:
        os.close(read)
        raise Ended("%s cannot be started: %s" % (argv[0], error), b"") from error
    finally:
        os.close(write)
    with os.fdopen(read, "rb", 0) as pipe:
        output = _drain(process, pipe.fileno(), stopping)
    if process.returncode:
        raise Ended("it ended with %s" % _status(process.returncode), output)
    return output


def _drain(process: "subprocess.Popen[bytes]", fd: int, stopping: "Callable[[], None]") -> bytes:
    output = b""
    os.set_blocking(fd, False)
    try:
        while True:
            ended = process.poll() is not None
            output = (output + _read(fd))[-1000000:]
            if ended:
                return output
            stopping()
            _wait(process)
    finally:
        if process.poll() is None:
            process.kill()
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
