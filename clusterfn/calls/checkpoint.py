"""Check what a call says about checkpoints before anything is sent: `resume=`, `warn_before=` and `requeue=`.

The host makes the copy when the job begins (`bridge/supervisor/checkpoint.py`).
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, NamedTuple

from clusterfn.bridge import layout
from clusterfn.config.host_text import reading
from clusterfn.config.units import exact_time
from clusterfn.errors import ConfigError

if TYPE_CHECKING:
    from clusterfn.config.options import Options
    from clusterfn.config.spec import Resources
    from clusterfn.hosts.host_state import HostState
    from clusterfn.scheduler.base import Scheduler

_TIMEOUT_S = 60.0
_IDS = frozenset("0123456789abcdef")
# The script prints one JSON object for each job whose id begins so. It has the content of the checkpoint, whether the
# job was asked to stop, and how its attempts ended.
_LOOK = f"""
for job in "$1"*; do
  [ -f "$job/{layout.SPEC}" ] || continue
  echo "${{job##*/}}" "$(ls -A "$job/{layout.CHECKPOINT}" 2>/dev/null | head -n 1 | wc -l)" \
    "$(ls -d "$job/{layout.CANCEL}" 2>/dev/null | wc -l)"
  cat "$job/{layout.ATTEMPTS}"/*/{layout.OUTCOME} 2>/dev/null
done
exit 0
"""


def check_warning(options: Options, resources: Resources, scheduler: Scheduler) -> None:
    """Reject a warning that would never come, or would come at the start.

    Raises:
        ConfigError: There is no time limit before which to warn, or it is too short.
    """
    warn_s, time_s = options.warn_s or 0.0, resources.time_s
    if time_s is None and not scheduler.has_nodes:
        raise ConfigError("warn_before= needs a time limit to warn of", hint='add time=, for example time="2h"')
    if time_s is not None and warn_s >= time_s:
        raise ConfigError(
            f'warn_before="{exact_time(warn_s)}" must be shorter than time="{exact_time(time_s)}", because the '
            "function would be warned at its start",
            hint=f'write warn_before="{exact_time(time_s / 10)}", or ask for more time',
        )


def check_requeue(options: Options, resources: Resources, scheduler: Scheduler) -> None:
    """Reject causes that cannot come, and a scheduler that does not requeue.

    Raises:
        ConfigError: As above.
    """
    if not scheduler.requeues:
        raise ConfigError(
            f"requeue= is not supported with {scheduler.title}",
            hint='leave it out; after a TimeLimit, call again with resume="…"',
        )
    if "timeout" in options.requeue and resources.time_s is None:
        raise ConfigError(
            'requeue= names "timeout", but the call has no time limit', hint='add time=, for example time="2h"'
        )


def to_resume(host_state: HostState, job_id: str) -> str:
    """Return the whole id of the job that `resume=` names.

    Raises:
        ConfigError: The host has no such job, it still runs, or it left no checkpoint.
    """
    host = host_state.settings.name
    name, job = _find(host_state, job_id)
    if not job.ended and job.stopping:
        raise ConfigError(f"resume={job_id!r}: that job is still being stopped", hint="call again in a moment")
    if not job.ended:
        raise ConfigError(
            f"resume={job_id!r}: that job is still running", hint=f"stop it first: clusterfn cancel {job_id}"
        )
    if not job.kept:
        raise ConfigError(
            f"resume={job_id!r}: that job left no checkpoint on {host}",
            hint="make the function write into os.environ['CLUSTERFN_CHECKPOINT']; call again without resume=",
        )
    return name


class _Earlier(NamedTuple):
    """An earlier job: whether it has a checkpoint, was asked to stop, and has ended."""

    kept: bool
    stopping: bool
    ended: bool = False


def _find(host_state: HostState, job_id: str) -> tuple[str, _Earlier]:
    """Find the one job whose id begins so; return its whole id and its state."""
    host = host_state.settings.name
    place = posixpath.join(host_state.root, layout.JOBS, job_id)
    answer = host_state.connection.run(["/bin/sh", "-c", _LOOK, "sh", place]).result(_TIMEOUT_S)
    jobs: dict[str, _Earlier] = {}
    for line in answer.out.decode("utf-8", "replace").splitlines():
        if line.startswith("{") and jobs:
            last = list(jobs)[-1]
            with reading(host, f"the outcome of {last}"):
                jobs[last] = jobs[last]._replace(ended=jobs[last].ended or bool(json.loads(line).get("final")))
        elif set(line.partition(" ")[0]) <= _IDS:
            with reading(host, "the names of its jobs"):
                name, kept, stopping = line.split()
            jobs[name] = _Earlier(kept != "0", stopping != "0")
    if not jobs:
        hint = "clusterfn jobs lists the jobs on a host"
        raise ConfigError(f"resume={job_id!r}: there is no such job on {host}", hint=hint)
    if len(jobs) > 1:
        raise ConfigError(
            f"resume={job_id!r} matches {len(jobs)} jobs on {host}", evidence=[*jobs][:10], hint="use a longer id"
        )
    return next(iter(jobs.items()))
