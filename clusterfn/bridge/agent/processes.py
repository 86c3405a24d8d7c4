"""Start programs for the client: run one to its end, detach one, or repeat one at intervals."""

import contextlib
import fcntl
import json
import os
import signal
import time

from .files import CHUNK, make_parent, write_all
from .forked import ChildProgram, detached, make_pipes
from .frames import FULL
from .handler import Failure, RequestHandler, expand, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .frames import Header
    from .handler import AgentServices

OUTPUT_LIMIT = 4 * 1024 * 1024
LINGER_S = 0.2  # for output that a finished program's children still hold open
LOCK_PATIENCE_S = 60.0


def changed_environment(header: "Header") -> "Dict[str, str]":
    """Return this process's variables without those of `unset`'s prefixes, and with those of `env`."""
    dropped = tuple(header.get("unset") or ())
    environment = {name: value for name, value in os.environ.items() if not (dropped and name.startswith(dropped))}
    environment.update(header.get("env") or {})
    return environment


class Program:
    """A running program with pipes, in a process group of its own; calls `done` once."""

    def __init__(
        self, agent: "AgentServices", header: "Header", stdin: bytes, done: "Callable[[Program], None]"
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
        (given, self.stdin), (self.stdout, out), (self.stderr, err) = make_pipes(3)
        try:
            self.child = ChildProgram(agent, header, changed_environment(header), (given, out, err), self.on_exit)
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
        agent.at(timeout_s, self.on_timeout)

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
        if self.stdin >= 0:  # its number may be another program's afterwards
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


class RunHandler(RequestHandler):
    """Run a program to its end and answer with its status and output."""

    program: "Optional[Program]" = None

    def start(self) -> None:
        self.program = Program(self.agent, self.header, self.body, self.on_done)
        self.body = b""

    def on_done(self, program: Program) -> None:
        out, err = program.text(program.stdout), program.text(program.stderr)
        sizes = dict(program.result(), out=len(out), err=len(err))
        if program.child.failure is not None:
            return self.fail(program.child.failure)
        if program.timed_out:
            message = "%s did not end within %g s" % (self.header["argv"][0], self.header.get("timeout_s") or 60)
            return self.fail(Failure("timeout", message), out + err, **sizes)
        return self.end(out + err, **sizes)

    def release(self) -> None:
        if self.program is not None and self.program.status is None:
            self.program.kill()


class SpawnHandler(RequestHandler):
    """Start a detached program: it outlives this agent, which reports its end if it still runs."""

    def start(self) -> None:
        log = expand(self.header["log"])
        make_parent(log)
        env = changed_environment(self.header)
        self.child = ChildProgram(self.agent, self.header, env, detached(log), self.on_exit, self.on_loaded)

    def on_loaded(self) -> None:
        self.send({"pid": self.child.pid, "starttime": start_time(self.child.pid)})

    def on_exit(self, status: int) -> None:
        if self.child.failure is not None:
            self.fail(self.child.failure)
        else:
            self.end(status=status)

    def stop(self) -> None:
        """Leave it running."""


def start_time(pid: int) -> "Optional[int]":
    """Return when a process started, in clock ticks since boot: with the pid this identifies it for ever (Linux)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


class RepeatHandler(RequestHandler):
    """Repeat a program at intervals. Agents of one user on one machine share its output through a file."""

    last: "Optional[Tuple[Any, bytes, bytes]]" = None
    program: "Optional[Program]" = None
    lock = -1
    busy_since: "Optional[float]" = None

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
        if not self.ended:
            self.safely(self.run_or_reuse)

    def run_or_reuse(self) -> None:
        if self.agent.out.size > FULL:
            return self.agent.at(1.0, self.turn)
        if self.shared and not self.take_lock():
            return self.agent.at(min(0.1, self.interval), self.turn)
        known = self.read_cached() if self.lock >= 0 else None
        if known is not None:
            self.unlock()
            return self.report(*known)
        self.program = Program(self.agent, self.header, b"", lambda program: self.safely(lambda: self.on_done(program)))
        return None

    def take_lock(self) -> bool:
        """Return False while another agent runs the program; True without one where no file can be made or locked."""
        try:
            make_parent(self.shared)
            fd = os.open(self.shared, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # the disk is full, say: the look matters more than sharing it
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            self.busy_since = self.busy_since or time.monotonic()
            return time.monotonic() - self.busy_since > LOCK_PATIENCE_S
        except OSError:
            os.close(fd)
            return True
        self.lock, self.busy_since = fd, None
        return True

    def unlock(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def read_cached(self) -> "Optional[Tuple[Any, bytes, bytes, float]]":
        data = b"".join(iter(lambda: os.read(self.lock, CHUNK), b""))
        line, _, body = data.partition(b"\n")
        try:
            head = json.loads(line.decode())
            age = time.time() - head["t"]
            whole = len(body) == head["out"] + head["err"]
        except (ValueError, KeyError, TypeError):
            return None
        fresh = whole and 0 <= age < self.interval
        return (head["rc"], body[: head["out"]], body[head["out"] :], age) if fresh else None

    def on_done(self, program: Program) -> None:
        if program.child.failure is not None:
            raise program.child.failure
        result = program.result()
        rc = None if program.timed_out else result["rc"] if result["rc"] is not None else -result["signal"]
        out, err = program.text(program.stdout), program.text(program.stderr)
        if program.truncated:  # the client would take what a cut list lacks for gone
            rc, out, err = None, b"", b"it printed more than the 4 MB that clusterfn reads\n"
        if self.lock >= 0:
            head = json.dumps({"t": time.time(), "rc": rc, "out": len(out), "err": len(err)}).encode()
            with contextlib.suppress(OSError):  # a full disk: `read_cached` rejects a truncated answer
                os.ftruncate(self.lock, 0)
                os.lseek(self.lock, 0, os.SEEK_SET)
                write_all(self.lock, memoryview(head + b"\n" + out + err))
            self.unlock()
        self.report(rc, out, err, 0.0)

    def report(self, rc: "Optional[int]", out: bytes, err: bytes, age: float) -> None:
        if self.ended:
            return
        same = self.last == (rc, out, err)
        self.last = (rc, out, err)
        self.send({"rc": rc, "out": len(out), "err": len(err), "same": same, "age_s": age}, b"" if same else out + err)
        self.agent.at(max(self.interval - age, 0.0), self.turn)

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        if self.program is not None and self.program.status is None:
            self.program.kill()
        self.unlock()
