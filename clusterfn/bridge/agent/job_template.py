"""Fork jobs from a template: a process that has loaded what the supervisor and the worker of the last jobs need.

A template serves one environment, which two jobs have used within a minute. It ends a minute after the last one, and
with this agent. `supervisor/early_start.py` starts it, `worker/template.py` is its process, and `worker/forked_job.py`
is what a job does in it.
"""

import _socket
import json
import os
import select
import signal
import sys
import time
from collections import deque

from .forked import ChildProgram, ForkedJob, changed_environment, make_pipes
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
# The kernel ends a process that was killed at once, unless its file system hangs.
_DIES_S = 0.5
_PR_SET_CHILD_SUBREAPER = 36


class JobTemplates:
    """Has the template of the environment that was used last, if there is one."""

    def __init__(self, agent: "AgentServices") -> None:
        self._agent = agent
        self._template: "Optional[_Template]" = None
        self._last: "Key" = ()
        self._last_at = float("-inf")
        # Of these environments one cannot have a template, as it prints or starts threads.
        self._unfit: "Set[Key]" = set()
        self._adopts = self._is_over = False

    def fork_job(
        self, header: "Header", env: "Dict[str, str]", fds: "Sequence[int]", on_exit: "Callable[[int], None]",
        on_loaded: "Callable[[], None]", on_failed: "Callable[[], None]",
    ) -> "Optional[ForkedJob]":  # fmt: skip
        """Fork a job if there is a template of its environment; else prepare one if the last job had the same.

        Args:
            header: Of its `spawn`.
            fds: Its stdin, stdout and stderr, which are closed here if it is forked.
            on_exit, on_loaded, on_failed: As for `ForkedJob`.

        Returns:
            Its process; None if it must be started.
        """
        template = header.get("template")
        if not template:
            return None
        words, key, now = template["argv"], (template["argv"][3], template["alike"]), time.monotonic()
        is_repeated = key == self._last and now - self._last_at < USED_S
        self._last, self._last_at = key, now
        if self._template is not None and self._template.key == key:
            self._template.used_at = now
            order = {
                "script": header["argv"], "supervise": [*words[:4], "run", template["folder"]], "cwd": header["cwd"],
                "folder": template["folder"], "env": env,
            }  # fmt: skip
            job = ForkedJob(self._agent, on_exit, on_loaded, on_failed)
            return job if self._template.fork(order, fds, job) else None
        if is_repeated and key not in self._unfit and not self._is_over and self._adopt():
            environment = changed_environment(header)
            self._agent.at(0.0, lambda: self._start(key, words, environment))
        return None

    def close(self) -> None:
        """End the template, and have none from now on. The jobs that it has forked live on."""
        self._is_over = True
        self._end_template()

    def _end_template(self) -> None:
        if self._template is not None:
            self._template.close()
        self._template = None

    def collect_orphans(self) -> None:
        """Collect orphans of jobs, which this process has adopted beside the jobs themselves."""
        if not sys.platform.startswith("linux"):
            return
        # While an order is open, an ended process may be its job, whose pid is not known yet.
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
        before = self._template
        if self._is_over or before is not None and (before.key == key or before.open_orders):
            return
        self._end_template()
        try:
            self._template = template = _Template(self._agent, key, words, env, self._ended)
        except OSError:
            # The machine has no process or no descriptor left.
            return
        self._agent.at(USED_S, lambda: self._end_if_idle(template))

    def _ended(self, template: "_Template") -> None:
        if template is self._template:
            self._template = None
        if template.is_unfit:
            self._unfit.add(template.key)
        # If it cannot start, only every second job tries again.
        self._last = ()
        self.collect_orphans()

    def _end_if_idle(self, template: "_Template") -> None:
        left_s = template.used_at + USED_S - time.monotonic()
        if template is not self._template:
            return
        if left_s <= 0:
            self._end_template()
        else:
            self._agent.at(left_s, lambda: self._end_if_idle(template))


class _Template:
    """A process that forks jobs. It says so once it can, and then the pid of each."""

    def __init__(
        self, agent: "AgentServices", key: "Key", words: "Sequence[str]", env: "Dict[str, str]",
        on_end: "Callable[[_Template], None]",
    ) -> None:  # fmt: skip
        self.key, self.used_at = key, time.monotonic()
        self.is_ready = self.is_unfit = False
        # They are answered in their order.
        self.open_orders: "Deque[ForkedJob]" = deque()
        self._agent, self._on_end = agent, on_end
        self._is_open, self._unread = True, b""
        (self._printed, printed), (self._report, report) = make_pipes(2)
        ours, theirs = [self._printed, self._report], [printed, report]
        try:
            self._control, control = _socket.socketpair()
        except OSError:
            for fd in ours + theirs:
                os.close(fd)
            raise
        try:
            fds = (control.detach(), *theirs)
            self._process = ChildProgram(agent, {"argv": words, "fork": True}, env, fds, lambda _: None)
        except OSError:
            self._control.close()
            for fd in ours:
                os.close(fd)
            raise
        self._control.setblocking(False)
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
        """Kill the process, which may be stopped, and let the orders fail that it has not answered."""
        if not self._is_open:
            return
        self._process.signal(signal.SIGKILL)
        # Its end comes once nothing of it can fork any more. Until then there may be an answer.
        until = time.monotonic() + _DIES_S
        while self._listen() and time.monotonic() < until:
            select.select([self._report], [], [], _DIES_S)
        self._is_open = self.is_ready = False
        del self._agent.readers[self._report]
        for fd in (self._printed, self._report):
            os.close(fd)
        self._control.close()
        while self.open_orders:
            self.open_orders.popleft().fail()

    def _expect(self, job: ForkedJob) -> None:
        if job in self.open_orders:
            self._end()

    def _end(self) -> None:
        if self._is_open:
            self.close()
            self._on_end(self)

    def _hear(self, _: int) -> None:
        if not self._listen() or not self.is_ready:
            self._end()

    def _listen(self) -> bool:
        """Take what it says; return whether it can say more."""
        try:
            data = os.read(self._report, 65536)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + data).split(b"\n")
        try:
            for line in lines:
                self._take(json.loads(line.decode()))
        except ValueError:
            # What it should have become could not start, and this says why.
            self.is_ready = False
        return bool(data)

    def _take(self, line: "Header") -> None:
        if "trouble" in line:
            self.is_unfit = bool(line["trouble"] or self._has_printed())
            self.is_ready = not self.is_unfit
        elif self.open_orders:
            job = self.open_orders.popleft()
            if line["pid"]:
                job.begin(line["pid"])
            else:
                job.fail()

    def _has_printed(self) -> bool:
        """Whether its interpreter has printed at its start, which belongs into the output of each job."""
        try:
            return bool(os.read(self._printed, 1))
        except BlockingIOError:
            return False


def _portable(value: "object") -> "object":
    """Return a value for JSON with names as UTF-8, whatever the locale of this process and that of the other."""
    if isinstance(value, str):
        return os.fsencode(value).decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {_portable(name): _portable(each) for name, each in value.items()}
    return [_portable(each) for each in value] if isinstance(value, (list, tuple)) else value
