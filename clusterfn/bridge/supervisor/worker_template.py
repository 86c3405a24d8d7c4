"""The template from which an element forks the workers of its items, as the supervisor has it.

It is a process of the environment's Python (`worker/template.py`). An item gets a worker of its own by exec instead as
long as the template is not there yet, if it has gone, or if the item needs what only a new interpreter reads. Once
items have said which modules they load, another template is forked from it. That loads these modules, and then takes
its place.
"""

import json
import os
import select
import time

from ..layout import INDEX_VARIABLE, TEMPLATE
from .process_tree import STOPPED, keep_apart, state_of
from .text import portable
from .worker_process import Pipes, WorkerSource, become_subreaper, changed_names, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Optional

    from .worker_process import WaitingWorker

_ANSWER_S = 10.0  # a fork takes milliseconds, unless the machine has no memory
_LOOK_S = 0.1
_ENOUGH = 2  # items that load a module, before the template does so too
# What an interpreter, its C library and its loader of programs read when they start.
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "TZ")


class WorkerTemplate(WorkerSource):
    """The template of one element. It starts beside the second worker, and is there for a later one."""

    def __init__(self) -> None:
        WorkerSource.__init__(self)
        self._is_first = True
        self._has_failed = not become_subreaper()  # it must adopt the workers
        self._current: "Optional[TemplateProcess]" = None
        self._next: "Optional[TemplateProcess]" = None  # it loads modules, and takes the other's place
        self._reports: "dict[str, int]" = {}  # how many items have loaded a module
        self._asked: "set[str]" = set()  # modules that a template was to load
        self._cpus: "list[int]" = []

    def launch(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> "WaitingWorker":
        """Start a worker, as `worker_process.launch`."""
        if self._is_first or self._has_failed:
            self._is_first = False
            return launch(argv, env, cwd, spec)
        if self._current is None:
            worker = launch(argv, env, cwd, spec)
            self._start(argv, env, cwd, spec)
            return worker
        self._look_at_next()
        worker_or_none = self._fork(argv) if self._can_become(self._current, env) else None
        self._start_next(argv)
        return worker_or_none or launch(argv, env, cwd, spec)

    def learn(self, loaded: "Iterable[str]", cpus: "Optional[Iterable[int]]") -> None:
        """Take note of the modules that an item has loaded, on these CPUs."""
        for name in loaded:
            self._reports[name] = self._reports.get(name, 0) + 1
        self._cpus = sorted(cpus or ())

    def close(self) -> None:
        """End the processes; their workers live on."""
        for template in (self._current, self._next):
            if template is not None:
                template.process.dismiss()
        self._current = self._next = None
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
        if template.has_loaded and set(changed) - {INDEX_VARIABLE}:  # what it has loaded may have read them
            return False
        return bool(is_ready) and not any(name.startswith(_READ_AT_START) for name in changed)

    def _fork(self, argv: "list[str]") -> "Optional[WaitingWorker]":
        worker = self._current.fork(argv) if self._current is not None else None
        if worker is None:
            self.close()
        return worker

    def _start_next(self, argv: "list[str]") -> None:
        """Fork the template that is to have the modules which items load, if there are any that this one has not."""
        current, wanted = self._current, {name for name, count in self._reports.items() if count >= _ENOUGH}
        wanted -= self._asked
        if not wanted or self._next is not None or current is None or not current.is_ready():
            return
        self._asked |= wanted
        process = self._fork([*argv[:2], TEMPLATE])
        if process is not None:
            order = {"load": sorted(wanted), "cpus": self._cpus, "parent": os.getpid()}
            process.order((json.dumps(portable(order)) + "\n").encode())
            self._next = TemplateProcess(process, current.env, has_loaded=True)

    def _look_at_next(self) -> None:
        """Let the other template take over once it has loaded its modules; without it, this one goes on."""
        following = self._next
        is_ready = following.is_ready() if following is not None else None
        if following is None or is_ready is None:
            return
        gone = self._current if is_ready else following
        self._current, self._next = (following if is_ready else self._current), None
        if gone is not None:
            gone.process.dismiss()


class TemplateProcess:
    """The process of a template.

    Attributes:
        process: As a worker that never begins.
        env: Its variables.
        has_loaded: Whether it loads modules for the items.
    """

    def __init__(self, process: "WaitingWorker", env: "dict[str, str]", has_loaded: bool = False) -> None:
        keep_apart(process.pid)
        self.process = process
        self.env = env
        self.has_loaded = has_loaded
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
