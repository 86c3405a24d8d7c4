"""Fork jobs from a template: a process that has loaded what the supervisor and the worker of the last jobs need.

A template serves one environment, which two jobs have used within a minute. It ends a minute after the last one, and
with this agent. `bridge/supervisor/job_template.py` is what runs in it.
"""

import _socket
import json
import os
import signal
import sys
import time
from collections import deque

from .forked import ChildProgram, changed_environment, make_pipes
from .libc import libc_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, Dict, Optional, Sequence, Set, Tuple

    from .frames import Header
    from .handler import AgentServices

    Key = Tuple[str, ...]

# How long the environment of the last job counts as used.
USED_S = 60.0
# A fork takes milliseconds, unless the machine has no memory. A job starts without the template after this time.
ANSWER_S = 3.0
_PR_SET_CHILD_SUBREAPER = 36


class ForkedJob:
    """The process of a job that a template forks, as `ChildProgram` is one that is started.

    Args:
        on_exit: Takes its status. It comes last.
        on_loaded: Called once its pid is known.
        on_failed: Called if it cannot be forked after all, and nothing else is then.
    """

    failure = None

    def __init__(
        self, agent: "AgentServices", on_exit: "Callable[[int], None]", on_loaded: "Callable[[], None]",
        on_failed: "Callable[[], None]",
    ) -> None:  # fmt: skip
        self._agent, self._on_exit, self._on_loaded, self.fail = agent, on_exit, on_loaded, on_failed
        self.pid = self._signal = 0
        self._is_over = False

    @property
    def is_loading(self) -> bool:
        """Whether it is not known yet which process it is."""
        return not self.pid

    @property
    def is_unwanted(self) -> bool:
        """Whether it was sent a signal before that."""
        return bool(self._signal and not self.pid)

    def begin(self, pid: int) -> None:
        """Take note of its process, which this one has adopted."""
        self.pid = pid
        if self._signal:
            self.signal(self._signal)
        else:
            self._on_loaded()
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            # The kernel gave it to another process, and its job is followed by its files alone.
            return
        if done:
            self._exited(status)
        else:
            self._agent.children[pid] = self._exited

    def signal(self, number: int) -> None:
        """Send a signal to all processes of its session, once there are any."""
        self._signal = number
        if self.pid and not self._is_over:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                # It leads no session yet. It is not collected, so no other process has its pid.
                os.kill(self.pid, number)

    def _exited(self, status: int) -> None:
        self._is_over = True
        self._on_exit(status)


class JobTemplates:
    """Has the template of the environment that was used last, if there is one."""

    def __init__(self, agent: "AgentServices") -> None:
        self._agent = agent
        self._template: "Optional[_Template]" = None
        self._last: "Key" = ()
        self._last_at = 0.0
        # Of these environments one cannot have a template, as it prints or starts threads.
        self._unfit: "Set[Key]" = set()
        self._adopts = False

    def fork_job(
        self, header: "Header", env: "Dict[str, str]", fds: "Sequence[int]", on_exit: "Callable[[int], None]",
        on_loaded: "Callable[[], None]", on_failed: "Callable[[], None]",
    ) -> "Optional[ForkedJob]":  # fmt: skip
        """Fork a job if there is a template of its environment; else prepare one if the last job had the same.

        Args:
            header: Of its `spawn`.
            fds: Its stdin, stdout and stderr, which are closed here if it is forked.
            on_exit: As the other two, an argument of `ForkedJob`.

        Returns:
            Its process; None if it must be started.
        """
        wanted = header.get("template")
        if not wanted:
            return None
        words, key, now = wanted["argv"], (wanted["argv"][3], wanted["alike"]), time.monotonic()
        is_repeated = key == self._last and now - self._last_at < USED_S
        self._last, self._last_at = key, now
        if self._template is not None and self._template.key == key:
            stands_for = {"script": header["argv"], "supervise": [*words[:4], "run", words[5]]}
            job = ForkedJob(self._agent, on_exit, on_loaded, on_failed)
            return job if self._template.fork(dict(stands_for, folder=header["cwd"], env=env), fds, job) else None
        if is_repeated and key not in self._unfit and self._adopt():
            environment = changed_environment(header)
            self._agent.at(0.0, lambda: self._start(key, words, environment))
        return None

    def close(self) -> None:
        """End the template. The jobs that it has forked live on, and others start without it."""
        template, self._template = self._template, None
        if template is not None:
            template.close()

    def collect_strangers(self) -> None:
        """Collect orphans of jobs, which this process has adopted beside the jobs themselves."""
        # A job whose pid is not known yet must not be taken for one.
        while self._adopts and not (self._template is not None and self._template.open_orders):
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in self._agent.children:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)

    def _adopt(self) -> bool:
        """Let this process adopt orphans, as it becomes the parent of jobs that a template forks: Linux alone can."""
        if not self._adopts and sys.platform.startswith("linux"):
            self._adopts = libc_function("prctl")(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        return self._adopts

    def _start(self, key: "Key", words: "Sequence[str]", env: "Dict[str, str]") -> None:
        if self._template is not None and self._template.key == key:
            return
        self.close()
        try:
            self._template = _Template(self._agent, key, words, env, self._ended)
        except OSError:
            # The machine has no process or no descriptor left.
            return
        self._agent.at(USED_S, self._end_if_idle)

    def _ended(self, template: "_Template", has_served: bool) -> None:
        if template is self._template:
            self._template = None
        if not has_served:
            self._unfit.add(template.key)

    def _end_if_idle(self) -> None:
        left_s = self._last_at + USED_S - time.monotonic()
        if left_s <= 0:
            self.close()
        elif self._template is not None:
            self._agent.at(left_s, self._end_if_idle)


class _Template:
    """A process that forks jobs. It says so once it can, and then the pid of each."""

    def __init__(
        self, agent: "AgentServices", key: "Key", words: "Sequence[str]", env: "Dict[str, str]",
        on_end: "Callable[[_Template, bool], None]",
    ) -> None:  # fmt: skip
        self.key, self.is_ready = key, False
        # They are answered in their order.
        self.open_orders: "Deque[ForkedJob]" = deque()
        self._agent, self._on_end = agent, on_end
        (self._printed, printed), (self._report, report) = make_pipes(2)
        self._control, control = _socket.socketpair()
        self._control.setblocking(False)
        self._is_open, self._unread = True, b""
        try:
            fds = (control.detach(), printed, report)
            self._process = ChildProgram(agent, {"argv": words, "fork": True}, env, fds, self._exited)
        except OSError:
            self._close_files()
            raise
        for fd in (self._printed, self._report):
            os.set_blocking(fd, False)
        agent.readers[self._report] = self._hear

    def fork(self, order: "Header", fds: "Sequence[int]", job: ForkedJob) -> bool:
        """Order a job; False if the template cannot take it now."""
        if not self.is_ready:
            return False
        line = (json.dumps(_portable(order)) + "\n").encode()
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        try:
            sent = self._control.sendmsg([line], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        except OSError:
            return False
        if sent != len(line):
            # The rest of this line would be the beginning of the next one.
            self._agent.at(0.0, self._end)
            return False
        for fd in set(fds):
            os.close(fd)
        self.open_orders.append(job)
        self._agent.at(ANSWER_S, lambda: self._expect(job))
        return True

    def close(self) -> None:
        """Let the process end, and the orders fail that it has not answered."""
        if not self._is_open:
            return
        self._is_open = self.is_ready = False
        del self._agent.readers[self._report]
        self._close_files()
        while self.open_orders:
            self.open_orders.popleft().fail()

    def _close_files(self) -> None:
        for fd in (self._printed, self._report):
            os.close(fd)
        self._control.close()

    def _expect(self, job: ForkedJob) -> None:
        if job in self.open_orders:
            self._process.signal(signal.SIGKILL)
            self._end()

    def _hear(self, fd: int) -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        try:
            for line in lines:
                self._take(json.loads(line.decode()))
        except (ValueError, KeyError):
            # What it should have become was not started, and this says why.
            self.is_ready = False
        if not data or not self.is_ready:
            self._end()

    def _take(self, said: "Header") -> None:
        if "trouble" in said:
            self.is_ready = not (said["trouble"] or self._has_printed())
        elif self.open_orders:
            job = self.open_orders.popleft()
            if said["pid"]:
                job.begin(said["pid"])
            else:
                job.fail()

    def _has_printed(self) -> bool:
        """Whether its interpreter has printed at its start, which belongs into the output of each job."""
        try:
            return bool(os.read(self._printed, 1))
        except BlockingIOError:
            return False

    def _end(self) -> None:
        has_served = self.is_ready
        self.close()
        self._on_end(self, has_served)

    def _exited(self, _: int) -> None:
        if self._is_open:
            self._end()


def _portable(value: "object") -> "object":
    """Return a value for JSON with names as UTF-8, whatever the locale of this process and that of the other."""
    if isinstance(value, str):
        return os.fsencode(value).decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {_portable(name): _portable(each) for name, each in value.items()}
    return [_portable(each) for each in value] if isinstance(value, (list, tuple)) else value
