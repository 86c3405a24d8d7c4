"""Fork jobs that would start alike: supervisors from this agent, and the keepers of their workers from a template.

A template is an interpreter of one environment, which two jobs have used within a minute. It ends a minute after the
last one, and with this agent. `supervisor/keeper.py` starts it, and `worker/template.py` is its process.
"""

import _socket
import json
import os
import signal
import sys
import time

from .forked import ChildProgram, ForkedJob, can_fork_jobs, changed_environment, is_whole, make_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Optional, Sequence, Set, Tuple

    from .frames import Header
    from .handler import AgentServices

    Key = Tuple[str, ...]

# How long the environment of the last job counts as used.
USED_S = 60.0
# A fork takes milliseconds, unless the machine has no memory. A supervisor starts its worker itself after this time.
ANSWER_S = 3.0
# A fork holds the memory of what the agent has still to send.
_MOST_UNSENT = 4 << 20


class JobTemplates:
    """Has the template of the environment that was used last, if there is one."""

    def __init__(self, agent: "AgentServices") -> None:
        self._agent = agent
        self._template: "Optional[_Template]" = None
        self._last: "Key" = ()
        self._last_at = float("-inf")
        # Of these environments one cannot have a template, as it prints or starts threads.
        self._unfit: "Set[Key]" = set()
        # Only Linux has processes that adopt orphans, as a keeper does.
        self._is_over = not sys.platform.startswith("linux")

    def forked_job(self, header: "Header") -> "Optional[ForkedJob]":
        """Return a job to be forked from this process, by its `spawn`; None if it must start by its script."""
        template = header.get("template")
        if not template or self._agent.out.size > _MOST_UNSENT:
            return None
        python, supervise = template["argv"][0], template["argv"][3]
        if python != sys.executable or not is_whole(supervise):
            return None
        if not can_fork_jobs(os.path.dirname(supervise)):
            return None
        return ForkedJob(header, self.keeper_for(header))

    def keeper_for(self, header: "Header") -> int:
        """Return the socket of a keeper, forked from the template of this job's environment; -1 if there is none yet.

        Prepare one if the last job had the same.
        """
        template = header["template"]
        words = template["argv"]
        key = (template["argv"][3], template["alike"])
        now = time.monotonic()
        is_repeated = key == self._last and now - self._last_at < USED_S
        self._last, self._last_at = key, now
        if self._template is not None and self._template.key == key:
            self._template.used_at = now
            return self._template.fork_keeper()
        if is_repeated and key not in self._unfit and not self._is_over:
            environment = changed_environment(header)
            self._agent.at(0.0, lambda: self._start(key, words, environment))
        return -1

    def close(self) -> None:
        """End the template, and have none from now on. The keepers that it has forked live on."""
        self._is_over = True
        self._end_template()

    def _end_template(self) -> None:
        if self._template is not None:
            self._template.close()
        self._template = None

    def _start(self, key: "Key", words: "Sequence[str]", env: "Dict[str, str]") -> None:
        if self._is_over or self._template is not None and self._template.key == key:
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

    def _end_if_idle(self, template: "_Template") -> None:
        left_s = template.used_at + USED_S - time.monotonic()
        if template is not self._template:
            return
        if left_s <= 0:
            self._end_template()
        else:
            self._agent.at(left_s, lambda: self._end_if_idle(template))


class _Template:
    """A process that forks keepers. It says so once it can, and then the pid of each."""

    def __init__(
        self,
        agent: "AgentServices",
        key: "Key",
        words: "Sequence[str]",
        env: "Dict[str, str]",
        on_end: "Callable[[_Template], None]",
    ) -> None:
        self.key = key
        self.used_at = time.monotonic()
        self.is_unfit = self._is_ready = False
        # How many keepers were ordered, and how many orders it has answered.
        self._ordered = self._answered = 0
        self._agent = agent
        self._on_end = on_end
        self._is_open = True
        self._unread = b""
        (self._printed, printed), (self._report, report) = make_pipes(2)
        ours = [self._printed, self._report]
        theirs = [printed, report]
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

    def fork_keeper(self) -> int:
        """Order a keeper, and return its supervisor's end of its socket; -1 if it cannot be ordered now."""
        if not self._is_ready:
            return -1
        try:
            ours, theirs = _socket.socketpair()
        except OSError:
            return -1
        rights = theirs.fileno().to_bytes(4, sys.byteorder)
        try:
            self._control.sendmsg([b"\n"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        except OSError:
            ours.close()
            return -1
        finally:
            theirs.close()
        self._ordered += 1
        number = self._ordered
        self._agent.at(ANSWER_S, lambda: self._expect(number))
        return ours.detach()

    def close(self) -> None:
        """Kill the process, which may be stopped."""
        if not self._is_open:
            return
        self._process.signal(signal.SIGKILL)
        self._is_open = self._is_ready = False
        del self._agent.readers[self._report]
        for fd in (self._printed, self._report):
            os.close(fd)
        self._control.close()

    def _expect(self, number: int) -> None:
        if self._answered < number:
            self._end()

    def _end(self) -> None:
        if self._is_open:
            self.close()
            self._on_end(self)

    def _hear(self, _: int) -> None:
        if not self._listen() or not self._is_ready:
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
                self._on_line(json.loads(line.decode()))
        except ValueError:
            # What it should have become could not start, and this says why.
            self._is_ready = False
        return bool(data)

    def _on_line(self, line: "Header") -> None:
        if "trouble" in line:
            self.is_unfit = bool(line["trouble"] or self._has_printed())
            self._is_ready = not self.is_unfit
        else:
            self._answered += 1

    def _has_printed(self) -> bool:
        """Whether its interpreter has printed at its start, which belongs into the output of each job."""
        try:
            return bool(os.read(self._printed, 1))
        except BlockingIOError:
            return False
