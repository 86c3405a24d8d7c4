"""What a step of `check` is, how it ends, and what the steps have found so far. Imported by every step."""

from __future__ import annotations

import functools
import json
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterfn.bridge import layout
from clusterfn.config.host_text import reading
from clusterfn.config.spec import Host
from clusterfn.errors import HostError
from clusterfn.hosts import survey
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.host_state import HostState
from clusterfn.hosts.survey import Site
from clusterfn.scheduler import scheduler_for

TIMEOUT_S = 60.0
# The state of the function's job, the reason for it, and the seconds since it was sent.
Progress = Callable[[str, str, float], None]
# Prints the spec of each recent job, followed by NUL, and then how many jobs wait in the machine's own queue.
_JOBS = r"""
cd -- "$1" 2>/dev/null && ls -t | head -n 20 | while read -r job; do cat -- "$job/$2"; printf '\0'; done 2>/dev/null
find "$3" -type f ! -name '.*' 2>/dev/null | wc -l
"""


class StepFailed(Exception):
    """A step failed, and clusterfn has no error of its own for it."""

    def __init__(self, message: str, hint: str, evidence: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.evidence = tuple(evidence)


class StepWarning(StepFailed):
    """A step found what may go wrong later; the steps that need it still run."""


class StepSkipped(Exception):
    """A step does not apply here; the text says why."""


@dataclass
class CheckState:
    """What the steps have found so far.

    Attributes:
        host_name: The host that the user named, if any.
        gpus: How many GPUs to try PyTorch on; 0 for none.
        timeout_s: How long to wait for the function, in the queue and in all; None: a minute and five.
        progress: Shows the state of the function's job, in place of the step's own line, a few times a second.
        broken: The error of the one attempt to connect, from which several steps are judged.
    """

    host_name: str | None
    environment: str | None = None
    no_job: bool = False
    timeout_s: float | None = None
    progress: Progress = lambda state, reason, seconds: None
    host: Host = field(init=False, repr=False, compare=False)
    host_state: HostState = field(init=False, repr=False, compare=False)
    broken: HostError | None = None
    gpus: int = 0
    binds: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.host.name if hasattr(self, "host") else self.host_name or "the host"

    @property
    def has_nodes(self) -> bool:
        """Whether jobs of the host run on compute nodes."""
        return scheduler_for(self.host).has_nodes

    @property
    def place(self) -> str:
        """The host's lines in clusterfn.yml, for hints."""
        return f"host {self.host.name} ({self.host.source})"

    @functools.cached_property
    def site(self) -> Site:
        """What the host offers; asked once for all steps, and its jobs in the same round trip."""
        # Send the question about jobs first, so that both questions take one round trip.
        _ = self._jobs_reply
        return survey.survey(self.host_state.connection)

    @functools.cached_property
    def jobs(self) -> tuple[list[dict[str, Any]], int]:
        """The specs of recent jobs in the root, and how many jobs wait in the queue of a machine without SLURM."""
        *specs, waiting = self._jobs_reply.result(TIMEOUT_S).out.split(b"\0")
        with reading(self.host.name, "its recent jobs"):
            return [dict(json.loads(spec)) for spec in specs if spec], int(waiting)

    @functools.cached_property
    def _jobs_reply(self) -> Reply[Completed]:
        root = self.host_state.root
        queue = posixpath.join(root, layout.MACHINES, self.host_state.connection.facts.machine, layout.QUEUE)
        argv = ["/bin/sh", "-c", _JOBS, "sh", posixpath.join(root, layout.JOBS), layout.SPEC, queue]
        return self.host_state.connection.run(argv, timeout_s=TIMEOUT_S)

    def run(self, *argv: str) -> Completed:
        """Run a command there, in the environment in which jobs are started."""
        unset = self.host_state.scheduler.unset
        return self.host_state.connection.run(argv, unset=unset, timeout_s=TIMEOUT_S).result(TIMEOUT_S)


@dataclass(frozen=True)
class Step:
    """One step: its name, those without which it makes no sense, and what it does."""

    name: str
    needs: tuple[str, ...]
    run: Callable[[CheckState], str]
