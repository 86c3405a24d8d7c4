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
from .worker_process import Pipes, become_subreaper, changed_names, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from .worker_process import WaitingWorker

_ANSWER_S = 10.0  # a fork takes milliseconds, unless the machine has no memory
_LOOK_S = 0.1
# What an interpreter, its C library and its loader of programs read when they start.
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "TZ")


class WorkerTemplate:
    """The template of one element. It starts beside the second worker, and is there for a later one."""

    def __init__(self) -> None:
        self._is_first = True
        self._process: "Optional[WaitingWorker]" = None
        self._env: "dict[str, str]" = {}
        self._is_ready = False
        self._has_failed = not become_subreaper()  # it must adopt the workers

    def launch(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> "WaitingWorker":
        """Start a worker, as `worker_process.launch`."""
        if self._is_first or self._has_failed:
            self._is_first = False
            return launch(argv, env, cwd, spec)
        if self._process is None:
            worker = launch(argv, env, cwd, spec)
            self._start(argv, env, cwd, spec)
            return worker
        worker_or_none = self._fork(argv) if self._can_become(env) else None
        return worker_or_none or launch(argv, env, cwd, spec)

    def close(self) -> None:
        """End the process; its workers live on."""
        process, self._process, self._has_failed = self._process, None, True
        if process is not None:
            process.dismiss()

    def _start(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> None:
        try:
            self._process = launch([*argv[:2], TEMPLATE], env, cwd, spec)
        except OSError:  # no process or pipe is to be had: the items start their own, and say so
            self._has_failed = True
            return
        keep_apart(self._process.pid)
        self._env = env

    def _can_become(self, env: "dict[str, str]") -> bool:
        """Whether the process is there, and a worker that is forked from it can have these variables."""
        if not self._is_ready:
            said = self._read(0.0)
            if said is None:
                return False
            self._is_ready = not said.get("trouble", True) and not self._has_printed()
            if not self._is_ready:
                self.close()
                return False
        return not any(name.startswith(_READ_AT_START) for name in changed_names(self._env, env))

    def _has_printed(self) -> bool:
        """Whether its start has printed something, which is to stand in the output of each item."""
        process = self._process
        return process is not None and any(_is_readable(fd) for fd in (process.out, process.err))

    def _fork(self, argv: "list[str]") -> "Optional[WaitingWorker]":
        process = self._process
        if process is None:
            return None
        order = {"argv": argv[2:], "parent": os.getpid()}
        with Pipes() as pipes:
            pid = 0
            if process.order((json.dumps(portable(order)) + "\n").encode(), pipes.theirs):
                pid = (self._read(_ANSWER_S) or {}).get("pid", 0)
            if pid:
                return pipes.worker(argv, self._env, pid)  # it gets the others with `begin`
        self.close()
        return None

    def _read(self, limit_s: float) -> "Optional[dict[str, Any]]":
        """Return what it says; None if it says nothing in this time. If it has ended, that is its trouble."""
        process, until = self._process, time.monotonic() + limit_s
        if process is None:
            return None
        while not _is_readable(process.report, min(limit_s, _LOOK_S)):
            if time.monotonic() >= until or state_of(process.pid) == STOPPED:
                return None
        line = os.read(process.report, 65536)
        return dict(json.loads(line.decode())) if line.endswith(b"\n") else {"trouble": "it has ended"}


def _is_readable(fd: int, limit_s: float = 0.0) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))
