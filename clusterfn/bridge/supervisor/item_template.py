"""The template from which an element forks the workers of its items, as the supervisor has it.

It is a process of the environment's Python (`worker/template.py`). An item gets a worker of its own by exec instead as
long as the template is not there yet, if it has gone, or if the item needs what only a new interpreter reads.
"""

import json
import os
import select
import time

from ..layout import TEMPLATE
from .environ import depends_on_cwd, may_still_get
from .process_tree import STOPPED, apart, state_of
from .text import portable
from .worker_process import Pipes, WorkerSource, become_subreaper, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from .worker_process import WorkerProcess

# A fork takes milliseconds, unless the machine has no memory.
_ANSWER_S = 10.0
_LOOK_S = 0.1
# The first item waits so long for the template, which would be there before an interpreter of its own. On a slow disk
# it starts one after all.
_START_S = 1.0


class ItemTemplate(WorkerSource):
    """The template of one element.

    Args:
        early: A template that was started ahead of the element; None lets the first item start one.
    """

    def __init__(self, early: "Optional[WorkerProcess]" = None) -> None:
        WorkerSource.__init__(self)
        # The supervisor must adopt the workers.
        self._has_failed = not become_subreaper()
        # It has what a worker has, and never begins.
        self._template = early
        self._cwd = ""
        self._is_ready = False
        self._patience_s = _START_S
        if early is not None:
            apart.add(early.pid)

    def launch(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> "WorkerProcess":
        if self._template is not None and not self._is_ready and not may_still_get(self._template.env, env):
            # It was started ahead, before all variables of the items were known.
            self._template.dismiss()
            self._template = None
        if self._template is None and not self._has_failed:
            self._start(argv, env, cwd, spec)
        worker = self._fork(self._template, argv, env, cwd) if self._template is not None else None
        return worker or launch(argv, env, cwd, spec)

    def close(self) -> None:
        """End the process; its workers live on."""
        if self._template is not None:
            self._template.dismiss()
        self._template = None
        self._has_failed = True

    def _start(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> None:
        try:
            self._template = launch([*argv[:2], TEMPLATE], env, cwd, spec)
        except OSError:
            # There is no room for a process or a pipe. The items start their own workers, and report it.
            self._has_failed = True
            return
        apart.add(self._template.pid)
        self._cwd = cwd

    def _fork(
        self, template: "WorkerProcess", argv: "list[str]", env: "dict[str, str]", cwd: str
    ) -> "Optional[WorkerProcess]":
        """Fork a worker; None if the template is not ready, has gone, or has read other variables or folders."""
        if not self._becomes_ready(template) or not may_still_get(template.env, env):
            return None
        if cwd != self._cwd and depends_on_cwd(env):
            return None
        order = {"argv": argv[2:], "parent": os.getpid()}
        with Pipes() as pipes:
            if template.order((json.dumps(portable(order)) + "\n").encode(), pipes.theirs):
                pid = (_read(template, _ANSWER_S) or {}).get("pid", 0)
                if pid:
                    # The worker gets its other variables with `begin`.
                    return pipes.worker(argv, template.env, pid)
        self.close()
        return None

    def _becomes_ready(self, template: "WorkerProcess") -> bool:
        """Whether workers may be forked from it; end it if it says that they may not."""
        said = None if self._is_ready else _read(template, self._patience_s)
        self._patience_s = 0.0
        if said is not None:
            # What its start has printed belongs into the output of each item.
            has_printed = any(_is_readable(fd) for fd in (template.out, template.err))
            self._is_ready = not said.get("trouble", True) and not has_printed
            if not self._is_ready:
                self.close()
        return self._is_ready


def _read(template: "WorkerProcess", limit_s: float) -> "Optional[dict[str, Any]]":
    """Return what it says; None if it says nothing in this time. If it has ended, that is its trouble."""
    until = time.monotonic() + limit_s
    while not _is_readable(template.report, min(limit_s, _LOOK_S)):
        if time.monotonic() >= until or state_of(template.pid) == STOPPED:
            return None
    line = os.read(template.report, 65536)
    return dict(json.loads(line.decode())) if line.endswith(b"\n") else {"trouble": "it has ended"}


def _is_readable(fd: int, limit_s: float = 0.0) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))
