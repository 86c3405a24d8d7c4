"""The template from which an element forks the workers of its items, as the supervisor has it.

It is a process of the environment's Python (`worker/template.py`). An item gets a worker of its own by exec instead as
long as the template is not there yet, if it has gone, or if the item needs what only a new interpreter reads.
"""

import json
import os
import select
import time

from ..layout import TEMPLATE
from .process_tree import STOPPED, keep_apart, state_of
from .text import portable
from .worker_process import Pipes, WorkerSource, become_subreaper, changed_names, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from .worker_process import WaitingWorker

_ANSWER_S = 10.0  # a fork takes milliseconds, unless the machine has no memory
_LOOK_S = 0.1
# What an interpreter, its C library and its loader of programs read when they start.
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "TZ")


class WorkerTemplate(WorkerSource):
    """The template of one element. It starts beside the second worker, and is there for a later one."""

    def __init__(self) -> None:
        WorkerSource.__init__(self)
        self._is_first = True
        self._has_failed = not become_subreaper()  # it must adopt the workers
        self._current: "Optional[TemplateProcess]" = None

    def launch(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> "WaitingWorker":
        """Start a worker, as `worker_process.launch`."""
        if self._is_first or self._has_failed:
            self._is_first = False
            return launch(argv, env, cwd, spec)
        if self._current is None:
            worker = launch(argv, env, cwd, spec)
            self._start(argv, env, cwd, spec)
            return worker
        forked = self._fork(argv) if self._can_become(self._current, env) else None
        return forked or launch(argv, env, cwd, spec)

    def close(self) -> None:
        """End the process; its workers live on."""
        if self._current is not None:
            self._current.process.dismiss()
        self._current = None
        self._has_failed = True

    def _start(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> None:
        try:
            process = launch([*argv[:2], TEMPLATE], env, cwd, spec)
        except OSError:  # no process or pipe is to be had: the items start their own, and say so
            self._has_failed = True
            return
        self._current = TemplateProcess(process, env)

    def _can_become(self, template: "TemplateProcess", env: "dict[str, str]") -> bool:
        """Whether the template is there, and a worker that is forked from it can have these variables."""
        is_ready = template.is_ready()
        if is_ready is False:
            self.close()
        changed = changed_names(template.env, env)
        return bool(is_ready) and not any(name.startswith(_READ_AT_START) for name in changed)

    def _fork(self, argv: "list[str]") -> "Optional[WaitingWorker]":
        worker = self._current.fork(argv) if self._current is not None else None
        if worker is None:
            self.close()
        return worker


class TemplateProcess:
    """The process of a template.

    Attributes:
        process: As a worker that never begins.
        env: Its variables.
    """

    def __init__(self, process: "WaitingWorker", env: "dict[str, str]") -> None:
        keep_apart(process.pid)
        self.process = process
        self.env = env
        self._is_ready: "Optional[bool]" = None

    def is_ready(self) -> "Optional[bool]":
        """Whether workers may be forked from it; None if it does not know yet."""
        if self._is_ready is None:
            said = self._read(0.0)
            if said is not None:
                self._is_ready = not said.get("trouble", True) and not self._has_printed()
        return self._is_ready

    def _has_printed(self) -> bool:
        """Whether its start has printed something, which is to stand in the output of each item."""
        return any(_is_readable(fd) for fd in (self.process.out, self.process.err))

    def fork(self, argv: "list[str]") -> "Optional[WaitingWorker]":
        """Fork a worker; None if it cannot, or has ended."""
        order = {"argv": argv[2:], "parent": os.getpid()}
        with Pipes() as pipes:
            pid = 0
            if self.process.order((json.dumps(portable(order)) + "\n").encode(), pipes.theirs):
                pid = (self._read(_ANSWER_S) or {}).get("pid", 0)
            return pipes.worker(argv, self.env, pid) if pid else None  # it gets its other variables with `begin`

    def _read(self, limit_s: float) -> "Optional[dict[str, Any]]":
        """Return what it says; None if it says nothing in this time. If it has ended, that is its trouble."""
        process, until = self.process, time.monotonic() + limit_s
        while not _is_readable(process.report, min(limit_s, _LOOK_S)):
            if time.monotonic() >= until or state_of(process.pid) == STOPPED:
                return None
        line = os.read(process.report, 65536)
        return dict(json.loads(line.decode())) if line.endswith(b"\n") else {"trouble": "it has ended"}


def _is_readable(fd: int, limit_s: float = 0.0) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))
