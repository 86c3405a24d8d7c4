"""Say when a job could start here that its client has not sent yet, so that it can choose among several machines.

`supervise.py outlook ROOT` reads from stdin what spec.json would say of the job: `resources`, `limits`, `scheduler` and
`priority`. `sent` has `resources` of jobs, by id, that its client has just sent. It prints a JSON object: `starts`,
`reason` if it would wait, and `before`, how many jobs would come before it. It changes nothing, and decides by the same
plan as the queue. The agent says itself that a job can start now, if that takes less time than a fork.
"""

import functools
import json
import os
import sys

from ..layout import CLAIM, job_dir
from ..supervisor import gpus, publish
from ..supervisor.text import portable
from . import lease_names, machine, plan
from .gpu_leases import keep_seen
from .lease import Leases
from .machine import MachineResources
from .tickets import Queue, Ticket, has_environment, is_claimed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_THIS = "this"
# Less than this is used of a GPU on which no process computes, so nvidia-smi need not be asked for processes.
_IDLE_MIB = 16
_FEW_NAMES = 100  # to read more of them takes longer than a fork


def print_outlook(root: str) -> int:
    """Print when the job of which stdin says what it asks for could start."""
    spec = json.loads(sys.stdin.buffer.read().decode())
    sys.stdout.write(json.dumps(portable(outlook(root, spec))) + "\n")
    return 0


def starts_now(root: str, question: bytes) -> "Optional[bytes]":
    """Return what `print_outlook` prints if a job without GPUs can start and none waits here; else None.

    The agent answers no other request meanwhile, so this reads no files of jobs, and asks no program or server.
    """
    spec = json.loads(question.decode())
    ticket, held = _as_ticket(_THIS, spec), Leases().binders()
    if spec["sent"] or len(held) > _FEW_NAMES or next(Queue(root).each_name(), None) is not None:
        return None
    names = lease_names.HeldNames(held, machine.now_s())
    there = MachineResources(machine.cores(), machine.memory_mb(), machine.available_mb(), ())
    lacks = machine.RemainingResources(there, names.running, os.getuid(), ticket.limits).lacks(ticket.asked)
    return None if names.waiting or lacks else json.dumps({"starts": True, "reason": "", "before": 0}).encode()


def outlook(root: str, spec: "dict[str, Any]") -> "dict[str, Any]":
    """Return when a job with this spec could start if it came now.

    Raises:
        AttemptEnded: nvidia-smi fails.
    """
    if not sys.platform.startswith("linux"):
        # There is no queue here, so each job starts as it comes.
        return {"starts": True, "reason": "", "before": 0}
    # The names come last: a job that has left the queue by now, or has a claim, holds what it asked for.
    unclaimed = [job for job in spec["sent"] if publish.read(job_dir(root, job), CLAIM) is None]
    waiting = Queue(root).read()
    in_line = [own for own in waiting if not own.after and not is_claimed(own) and has_environment(own)]
    names = lease_names.HeldNames(Leases().binders(), machine.now_s())
    running = {job.job for job in names.running if job.uid == os.getuid()}
    tickets = [own for own in in_line if own.job not in running]
    for job in set(unclaimed) - running - {own.job for own in waiting}:
        # It holds nothing and has no ticket yet, as its script has not come so far.
        tickets.append(_as_ticket(job, dict(spec, resources=spec["sent"][job])))
    tickets = sorted(tickets + [_as_ticket(_THIS, spec)])
    every = gpus.list_gpus("memory.used") if any(ticket.asked.gpus for ticket in tickets) else []
    left = [gpu for gpu in every if gpu.uuid not in names.gpus]
    is_idle = all(gpu.used_mib is not None and gpu.used_mib < _IDLE_MIB for gpu in left)
    used = {} if is_idle else gpus.used_by_others(gpu.uuid for gpu in left)
    # A job has its own name a moment before it has those of its GPUs.
    soon_held = max(0, sum(job.asked.gpus for job in names.running) - len(names.gpus))
    free = [gpu.uuid for gpu in left if gpu.uuid not in used][soon_held:]
    room = MachineResources(machine.cores(), machine.memory_mb(), machine.available_mb(), free)
    # Each counts as one that is not awaited: jobs that start one after another all start soon.
    late = {ticket.job for ticket in tickets}
    of_kind, holders = functools.partial(machine.gpus_of_kind, gpus=every), names.holders(gpu.uuid for gpu in every)
    view = plan.QueueView(room, names, os.getuid(), of_kind, holders, used, late=late, now_ms=machine.now_ns() // 10**6)
    start_plan = plan.plan_starts(tickets, view)
    starts = _THIS in start_plan.gpus
    if starts and every:
        # The job that comes now need not ask for them again.
        keep_seen(root, every)
    before = [ticket.job for ticket in tickets].index(_THIS) + sum(job.uid != os.getuid() for job in names.waiting)
    return {"starts": starts, "reason": start_plan.reasons.get(_THIS, ""), "before": before}


def _as_ticket(job: str, spec: "dict[str, Any]") -> Ticket:
    """Return the ticket of a job that comes now."""
    now = machine.now_ns()
    order = (-spec["priority"], 1, now)
    asked, limits, kind = machine.demand_of(spec), machine.limits_of(spec), machine.kind_of(spec["resources"])
    return Ticket(order, now // 10**6, job, job, "", "", None, now, asked, limits, kind, 0.0, None, "", (), ())
