"""Start a program with pipes. `supervise.py` runs in a fork of the agent, whose interpreter has started already."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, NoReturn, Optional, Sequence, Union

    from .frames import Header


def start_program(
    header: "Header", cwd: "Optional[str]", env: "Dict[str, str]"
) -> "Union[ForkedProgram, subprocess.Popen[bytes]]":
    """Start what a request asks for, in a session of its own."""
    argv, pipe = header["argv"], subprocess.PIPE
    if header.get("fork") and argv[0] == sys.executable:
        return ForkedProgram(argv, cwd, env)
    return subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=cwd, env=env, start_new_session=True, close_fds=True
    )


class ForkedProgram:
    """`supervise.py` in a fork of the agent.

    Attributes:
        pid, stdin, stdout, stderr, returncode: As of `subprocess.Popen`.
    """

    def __init__(self, argv: "List[str]", cwd: "Optional[str]", env: "Dict[str, str]") -> None:
        self.returncode: "Optional[int]" = None
        pipes = [os.pipe() for _ in range(3)]
        (given, write), (out, print_out), (err, print_err) = pipes
        try:
            self.pid = os.fork()
        except OSError:
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
            raise
        if self.pid == 0:
            _become(argv, cwd, env, (given, print_out, print_err))
        for fd in (given, print_out, print_err):
            os.close(fd)
        self.stdin, self.stdout, self.stderr = (
            open(fd, mode, buffering=0) for fd, mode in ((write, "wb"), (out, "rb"), (err, "rb"))  # noqa: SIM115 - kept
        )


def _become(argv: "List[str]", cwd: "Optional[str]", env: "Dict[str, str]", fds: "Sequence[int]") -> "NoReturn":
    """Run `python -I -S SCRIPT WORDS…` in this process, and end it; SCRIPT is that of the supervisor."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        for name in os.listdir("/dev/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):  # that of the listing itself
                    os.close(int(name))
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd or "/")
        sys.argv = argv[3:]
        sys.path.insert(0, os.path.dirname(argv[3]))
        status = importlib.import_module("_clusterfn.bridge.supervisor.program").main(argv[4:])
    except BaseException:  # noqa: BLE001 - after a fork nothing may run on; the client gets the traceback
        import traceback

        traceback.print_exc()
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:  # whatever fails: this process must not go on as a second agent
            os._exit(status)
