"""Programs that run once: to their end, or beyond this agent's."""

import os
import subprocess

from .failures import Failure
from .files import make_parent
from .paths import expand
from .program import Program, changed_environment
from .request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class Run(Request):
    program: "Optional[Program]" = None

    def start(self) -> None:
        self.program = Program(self.agent, self.header, self.body, self.on_done)
        self.body = b""

    def on_done(self, program: Program) -> None:
        out, err = program.text(program.stdout), program.text(program.stderr)
        sizes = dict(program.result(), out=len(out), err=len(err))
        if program.timed_out:
            message = "%s did not end within %g s" % (self.header["argv"][0], self.header.get("timeout_s") or 60)
            return self.fail(Failure("timeout", message), out + err, **sizes)
        return self.end(out + err, **sizes)

    def release(self) -> None:
        if self.program is not None and self.program.status is None:
            self.program.kill()


class Spawn(Request):
    """A detached program: it outlives this agent, which tells its end if it is still there."""

    def start(self) -> None:
        log = expand(self.header["log"])
        make_parent(log)
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.process = subprocess.Popen(
                self.header["argv"], stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, cwd=expand(self.header["cwd"]),
                env=changed_environment(self.header), start_new_session=True, close_fds=True,
            )  # fmt: skip
        finally:
            os.close(fd)
        self.agent.children[self.process.pid] = self.on_exit
        self.send({"pid": self.process.pid, "starttime": start_time(self.process.pid)})

    def on_exit(self, status: int) -> None:
        self.process.returncode = status
        self.end(status=status)

    def stop(self) -> None:
        """It is not ours to end."""


def start_time(pid: int) -> "Optional[int]":
    """When the kernel started it, in clock ticks since boot; with the pid it names a process for ever (Linux)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
