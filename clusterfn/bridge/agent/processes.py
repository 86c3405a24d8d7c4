"""Run a program with pipes, and repeat one at intervals."""

import contextlib
import fcntl
import json
import os
import signal
import time

from .files import CHUNK, make_parent, write_all
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
LOCK_PATIENCE_S = 60.0


class Program:
    """A running program with pipes, in a process group of its own; calls `done` once."""

    def __init__(
        self, agent: "AgentServices", header: "Header", stdin: bytes, done: "Callable[[Program], None]",
        on_loaded: "Callable[[], None]" = lambda: None,
    ) -> None:  # fmt: skip
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
            fds, env = (its_input, its_output, its_errors), changed_environment(header)
            self.child = ChildProgram(agent, header, env, fds, self.on_exit, on_loaded)
        except (OSError, Failure):
            for fd in (self.stdin, self.stdout, self.stderr):
                os.close(fd)
            raise
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
            self.output[fd], self.sizes[fd] = [], 0
            self.agent.readers[fd] = self.on_output
        os.set_blocking(self.stdin, False)
        self.agent.writers[self.stdin] = self.on_room
        self.limit = agent.at(timeout_s, self.on_timeout)

    def on_room(self, fd: int) -> None:
        try:
            self.input = self.input[os.write(fd, self.input) if len(self.input) else 0 :]
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


def is_locked_by_stopped(fd: int) -> bool:
    """Return whether a process that a signal has stopped has the lock of a file, as far as this kernel says that."""
    place = ":%d" % os.fstat(fd).st_ino
    try:
        with open("/proc/locks") as file:
            locks = [line.split() for line in file]
        for pid in [words[4] for words in locks if words[1] == "FLOCK" and words[5].endswith(place)]:
            with open("/proc/%s/stat" % pid, "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] == b"T":
                    return True
    except (OSError, IndexError):
        # /proc is missing outside Linux, and a process in a container may be invisible from here.
        return False
    return False


class RepeatHandler(RequestHandler):
    """Repeat a program at intervals. Agents of one user on one machine share its output through a file."""

    last: "Optional[Tuple[Any, bytes, bytes]]" = None
    program: "Optional[Program]" = None
    lock = -1
    busy_since: "Optional[float]" = None
    began = float("-inf")

    def start(self) -> None:
        self.interval = seconds(self.header, "interval_s", 60.0)
        self.shared = self.shared_path() if self.header.get("share") else ""
        self.turn()

    def shared_path(self) -> str:
        import hashlib

        if not self.agent.root:
            raise Failure("bad", "share needs a root: say hello first")
        key = json.dumps([self.header["share"], self.header["argv"]]).encode("utf-8", "surrogateescape")
        return os.path.join(self.agent.root, "machines", self.agent.machine, "looks", hashlib.sha256(key).hexdigest())

    def turn(self) -> None:
        self.safely(lambda: self.look(self.run_or_reuse))

    def look(self, action: "Callable[[], None]") -> None:
        """Do this; what keeps the program from running is the answer of this look only, as on a full process table."""
        try:
            action()
        except (OSError, Failure) as error:
            self.unlock()
            self.report(None, b"", ("%s\n" % error).encode("utf-8", "surrogateescape"), 0.0)

    def run_or_reuse(self) -> None:
        if self.agent.out.size > FULL:
            return self.later(1.0, self.turn)
        if self.shared and not self.take_lock():
            return self.later(min(0.1, self.interval), self.turn)
        cached = self.read_cached() if self.lock >= 0 else None
        if cached is not None:
            self.unlock()
            return self.report(*cached)
        self.began = time.monotonic()
        self.program = Program(self.agent, self.header, b"", self.on_end)
        return None

    def on_end(self, program: Program) -> None:
        self.safely(lambda: self.look(lambda: self.on_done(program)))

    def take_lock(self) -> bool:
        """Return False while another agent runs the program; True, unlocked, where that is stopped or nothing locks."""
        try:
            make_parent(self.shared)
            fd = os.open(self.shared, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            # The disk may be full. Looking at the queue matters more than sharing the output with other agents.
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            is_stopped = is_locked_by_stopped(fd)
            os.close(fd)
            if isinstance(error, BlockingIOError) and not is_stopped:
                # A holder that keeps the lock for longer than this hangs, so this agent runs the program itself.
                self.busy_since = self.busy_since or time.monotonic()
                return time.monotonic() - self.busy_since > LOCK_PATIENCE_S
            return True
        self.lock, self.busy_since = fd, None
        return True

    def unlock(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def read_cached(self) -> "Optional[Tuple[Any, bytes, bytes, float, float]]":
        data = b"".join(iter(lambda: os.read(self.lock, CHUNK), b""))
        line, _, body = data.partition(b"\n")
        try:
            head = json.loads(line.decode())
            age = time.time() - head["t"]
            fresh = len(body) == head["out"] + head["err"] and 0 <= age < self.interval
            took = float(head.get("took", 0.0))
        except (ValueError, KeyError, TypeError):
            return None
        return (head["rc"], body[: head["out"]], body[head["out"] :], age, took) if fresh else None

    def on_done(self, program: Program) -> None:
        if program.child.failure is not None:
            raise program.child.failure
        result = program.result()
        rc = None if program.timed_out else result["rc"] if result["rc"] is not None else -result["signal"]
        out, err = program.text(program.stdout), program.text(program.stderr)
        # The client would conclude that whatever a truncated list lacks has ended.
        if program.truncated:
            rc, out, err = None, b"", b"it printed more than the 4 MB that clusterfn reads\n"
        took = time.monotonic() - self.began
        if self.lock >= 0:
            facts = {"t": time.time(), "took": took, "rc": rc, "out": len(out), "err": len(err)}
            head = json.dumps(facts).encode()
            with contextlib.suppress(OSError):
                # On a full disk only a part is written, and `read_cached` rejects that by its length.
                os.ftruncate(self.lock, 0)
                os.lseek(self.lock, 0, os.SEEK_SET)
                write_all(self.lock, memoryview(head + b"\n" + out + err))
            self.unlock()
        self.report(rc, out, err, 0.0, took)

    def report(self, rc: "Optional[int]", out: bytes, err: bytes, age: float, took: float = 0.0) -> None:
        """Send one look, so many seconds after the program ended, which took so many."""
        if self.ended:
            return
        same = self.last == (rc, out, err)
        self.last = (rc, out, err)
        facts = {"rc": rc, "out": len(out), "err": len(err), "same": same, "age_s": age, "took_s": took}
        self.send(facts, b"" if same else out + err)
        self.later(max(self.interval - age, 0.0), self.turn)

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        if self.program is not None and self.program.status is None:
            self.program.kill()
        self.unlock()
