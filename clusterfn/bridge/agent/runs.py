"""Start programs for the client: run one to its end, or detach one."""

import os
import signal
import sys

from .files import make_parent
from .forked import BRIDGE, ChildProgram, changed_environment, detached, has_bridge, runs_in_fork
from .handler import Failure, RequestHandler, expand
from .processes import Program
from .starts import BEGINS_S, FILES_AT_START, FILES_OF_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .frames import Header


def _answer_outlook(header: "Header", question: bytes) -> "Optional[bytes]":
    """Answer `supervise.py outlook` without a fork, because a call waits for it; return None if only a fork can."""
    argv = header["argv"]
    if argv[4:5] != ["outlook"] or not (runs_in_fork(header) and has_bridge(os.path.dirname(argv[3]))):
        return None
    try:
        said: "Optional[bytes]" = sys.modules[BRIDGE + ".bridge.queue.outlook"].starts_now(argv[5], question)
    except (LookupError, AttributeError, OSError, TypeError, ValueError):  # its fork says what is wrong
        return None
    return said


class StartHandler(RequestHandler):
    """Start a program once there is room for it."""

    _files = FILES_AT_START

    def start(self) -> None:
        self.agent.starts.add(self.try_to_start)

    def try_to_start(self) -> "Optional[bool]":
        """Return whether it was started: False if the request has ended, None if there is no room for it now."""
        has_started = False if self.ended else self.safely(self.has_started)
        return False if has_started is None and self.ended else has_started

    def has_started(self) -> "Optional[bool]":
        argv = self.header["argv"]
        if not (isinstance(argv, list) and argv and all(isinstance(word, str) for word in argv)):
            raise Failure("bad", "argv is not a list of words: %r" % (argv,))
        try:
            self.start_program()
        except OSError as error:
            if not self.agent.starts.lacks_room(error):
                raise
            return None
        return True

    def start_program(self) -> None:
        """Start it, or raise OSError if the machine has nothing left for it."""
        raise NotImplementedError

    def keep_files(self, count: int) -> None:
        """Let others start with the descriptors that the program does not need any more."""
        released, self._files = self._files - count, count
        self.agent.starts.has_room(released)


class RunHandler(StartHandler):
    """Run a program to its end and answer with its status and output."""

    program: "Optional[Program]" = None

    def start(self) -> None:
        answer = _answer_outlook(self.header, self.body)
        if answer is None:
            super().start()
        else:
            self.end(answer, rc=0, signal=None, truncated=False, out=len(answer), err=0)

    def start_program(self) -> None:
        self.program = Program(self.agent, self.header, self.body, self.on_done, self.on_loaded)
        self.body = b""

    def on_loaded(self) -> None:
        self.keep_files(FILES_OF_RUN)

    def on_done(self, program: Program) -> None:
        self.keep_files(0)
        # The request was cancelled while the kernel could not end the program yet.
        if self.ended:
            return None
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


class SpawnHandler(StartHandler):
    """Start a detached program: it outlives this agent, which reports its end if it still runs."""

    child: "Optional[ChildProgram]" = None
    _begins = False

    @property
    def waits(self) -> bool:
        """Whether all that it needs is there, and it is still to be started."""
        return not self.after and not self.ended and self.child is None

    def start(self) -> None:
        agent = self.agent
        agent.job_starts.add(self.begin_job)
        if agent.root:
            agent.waiting_note.keep(os.path.join(agent.root, "machines", agent.machine, "starting"))

    def begin_job(self) -> bool:
        """Start it as one of the few jobs that begin at a time; return False if the request has ended."""
        if not self.ended:
            self._begins = True
            self.agent.at(BEGINS_S, self.let_next_begin)
            super().start()
        return self._begins

    def let_next_begin(self) -> None:
        """Count it no longer as one that begins."""
        if self._begins:
            self._begins = False
            self.agent.job_starts.has_room(1)

    def release(self) -> None:
        # A start that fails ends this request while it is counted. So the next one begins in a turn of its own.
        self.agent.at(0.0, self.let_next_begin)

    def start_program(self) -> None:
        # A job's log is in its folder. If that was removed while the start waited, it must not come back.
        os.stat(expand(self.header.get("cwd") or "/"))
        log = self.own(self.header["log"])
        make_parent(log)
        job = self.agent.forked_job(self.header)
        try:
            env = changed_environment(self.header)
            fds = detached(log)
        except OSError:
            if job is not None and job.keeper >= 0:
                os.close(job.keeper)
            raise
        self.child = ChildProgram(self.agent, self.header, env, fds, self.on_exit, self.on_loaded, job)

    def on_loaded(self) -> None:
        self.keep_files(0)
        assert self.child is not None
        self.send({"pid": self.child.pid, "starttime": start_time(self.child.pid)})

    def on_exit(self, status: int) -> None:
        assert self.child is not None
        if self.child.failure is not None:
            self.keep_files(0)
            self.fail(self.child.failure)
        else:
            self.end(status=status)

    def stop(self) -> None:
        """Leave it running, if the client may know that it does; else nothing of it stays."""
        if self.child is None:
            self.end()
        elif self.child.is_loading:
            self.child.signal(signal.SIGKILL)


def start_time(pid: int) -> "Optional[int]":
    """Return when a process started, in clock ticks since boot: with the pid this identifies it for ever (Linux)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
