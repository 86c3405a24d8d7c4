"""Run a program with pipes, and repeat one at intervals."""

import os
import signal
import time

from .files import CHUNK
from .forked import ChildProgram, changed_environment, make_pipes
from .frames import FULL
from .handler import Failure, RequestHandler, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .frames import Header
    from .handler import AgentServices

OUTPUT_LIMIT = 4 * 1024 * 1024
# Children of a finished program may hold its output open. After this time, what has arrived is taken as complete.
LINGER_S = 0.2


class Program:
    """A running program with pipes, in a process group of its own; calls `done` once."""

    def __init__(
        self,
        agent: "AgentServices",
        header: "Header",
        stdin: bytes,
        done: "Callable[[Program], None]",
        on_loaded: "Callable[[], None]" = lambda: None,
    ) -> None:
        self.agent = agent
        self.done = done
        self.input = memoryview(stdin)
        self.output: "Dict[int, List[bytes]]" = {}
        self.sizes: "Dict[int, int]" = {}
        self.truncated = self.timed_out = self.finished = False
        self.stop_at = str(header.get("stop_at") or "").encode()
        self.status: "Optional[int]" = None
        timeout_s = seconds(header, "timeout_s", 60.0)
        (its_input, self.stdin), (self.stdout, its_output), (self.stderr, its_errors) = make_pipes(3)
        try:
            fds = (its_input, its_output, its_errors)
            env = changed_environment(header)
            self.child = ChildProgram(agent, header, env, fds, self.on_exit, on_loaded)
        except (OSError, Failure):
            for fd in (self.stdin, self.stdout, self.stderr):
                os.close(fd)
            raise
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
            self.output[fd] = []
            self.sizes[fd] = 0
            self.agent.readers[fd] = self.on_output
        os.set_blocking(self.stdin, False)
        self.agent.writers[self.stdin] = self.on_room
        self.limit = agent.at(timeout_s, self.on_timeout)

    def on_room(self, fd: int) -> None:
        try:
            written = os.write(fd, self.input) if len(self.input) else 0
            self.input = self.input[written:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.input = memoryview(b"")
        if not len(self.input):
            self.close_input()

    def on_output(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        room = OUTPUT_LIMIT - self.sizes[fd]
        self.truncated = self.truncated or len(data) > room
        self.output[fd].append(data[:room])
        self.sizes[fd] += len(data[:room])
        # A program such as sbatch announces that it will wait and retry. It is ended, because the client retries
        # instead.
        if self.stop_at and fd == self.stderr and self.status is None and self.stop_at in self.text(fd):
            self.kill()
        if not data:
            del self.agent.readers[fd]
            self.maybe_done()

    def on_exit(self, status: int) -> None:
        self.status = status
        self.maybe_done()
        if not self.finished:
            self.agent.at(LINGER_S, self.finish_with_what_is_there)

    def on_timeout(self) -> None:
        if self.status is None:
            self.timed_out = True
            self.kill()

    def close_input(self) -> None:
        # The number must be forgotten with the descriptor: the next program may get the same one.
        if self.stdin >= 0:
            del self.agent.writers[self.stdin]
            os.close(self.stdin)
            self.stdin = -1

    def kill(self) -> None:
        self.child.signal(signal.SIGKILL)

    def maybe_done(self) -> None:
        if self.status is not None and not any(fd in self.agent.readers for fd in self.output):
            self.finish()

    def finish_with_what_is_there(self) -> None:
        """Read what it printed, which this agent may not have had the time for, and finish without the end of file."""
        for fd in self.agent.readers.keys() & self.output.keys():
            self.on_output(fd)
        self.finish()

    def finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        self.limit.drop()
        self.close_input()
        for fd in self.output:
            self.agent.readers.pop(fd, None)
            os.close(fd)
        self.done(self)
        self.output.clear()

    def text(self, fd: int) -> bytes:
        return b"".join(self.output[fd])

    def result(self) -> "Header":
        status = self.status or 0
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return {"rc": None if ended_by else os.WEXITSTATUS(status), "signal": ended_by, "truncated": self.truncated}


class RepeatHandler(RequestHandler):
    """Repeat a program at intervals, the first time after `delay_s`."""

    last: "Optional[Tuple[Any, bytes, bytes]]" = None
    program: "Optional[Program]" = None
    began = float("-inf")

    def start(self) -> None:
        self.interval = seconds(self.header, "interval_s", 60.0)
        self.later(seconds(self.header, "delay_s", 0.0), self.turn)

    def turn(self) -> None:
        self.safely(lambda: self.look(self.run_program))

    def look(self, action: "Callable[[], None]") -> None:
        """Do this; what keeps the program from running is the answer of this look only, as on a full process table."""
        try:
            action()
        except (OSError, Failure) as error:
            self.report(None, b"", ("%s\n" % error).encode("utf-8", "surrogateescape"))

    def run_program(self) -> None:
        if self.agent.out.size > FULL:
            return self.later(1.0, self.turn)
        self.began = time.monotonic()
        self.program = Program(self.agent, self.header, b"", self.on_end)
        return None

    def on_end(self, program: Program) -> None:
        self.safely(lambda: self.look(lambda: self.on_done(program)))

    def on_done(self, program: Program) -> None:
        if program.child.failure is not None:
            raise program.child.failure
        result = program.result()
        rc = result["rc"] if result["rc"] is not None else -result["signal"]
        if program.timed_out:
            rc = None
        out, err = program.text(program.stdout), program.text(program.stderr)
        # The client would conclude that whatever a truncated list lacks has ended.
        if program.truncated:
            rc, out, err = None, b"", b"it printed more than the 4 MB that clusterfn reads\n"
        self.report(rc, out, err, time.monotonic() - self.began)

    def report(self, rc: "Optional[int]", out: bytes, err: bytes, took: float = 0.0) -> None:
        """Send one look, which took so many seconds."""
        if self.ended:
            return
        same = self.last == (rc, out, err)
        self.last = (rc, out, err)
        facts = {"rc": rc, "out": len(out), "err": len(err), "same": same, "took_s": took}
        self.send(facts, b"" if same else out + err)
        self.later(self.interval, self.turn)

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        if self.program is not None and self.program.status is None:
            self.program.kill()
