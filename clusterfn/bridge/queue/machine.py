"""This machine as its queue sees it: its name and clock, what it has, what jobs take of it, and what is left.

GPUs are counted by UUID, everything else by amount. Jobs are admitted and reserved for one after another.
"""

import os
import sys
import time
from collections import namedtuple

from ..agent.trusted import machine_name
from ..layout import MACHINES
from ..supervisor.eligible_gpus import allowed_gpus, eligible_gpus, only_of, squeezed
from ..supervisor.process_tree import read_proc, start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Iterable, Mapping, Optional, Sequence

    from ..supervisor.eligible_gpus import GpuInfo

# CLOCK_BOOTTIME, which Python names from 3.7 on. It runs on while the machine sleeps.
_BOOTTIME = 7

Demand = namedtuple("Demand", ("gpus", "cores", "memory_mb"))
# Which GPUs are suitable. type: as `squeezed` writes it, "" for any. memory_mb: the size of each, 0 for any. only: the
# GPUs that the user's clusterfn.yml permits, () for all; the names of leases do not say this.
Kind = namedtuple("Kind", ("type", "memory_mb", "only"))
# Python 3.6 takes no defaults otherwise.
Kind.__new__.__defaults__ = ((),)
# What all running jobs of one user may take together; None for all there is.
UserLimits = namedtuple("UserLimits", ("gpus", "cores", "memory_mb", "jobs"))
# A job that runs. shared: whether it shares the cores in time with all other programs, so that no other user waits for
# them.
Running = namedtuple("Running", ("uid", "job", "asked", "shared"))
# A job that is next in its line. ms: since when, counted from the machine's start. more: how many further jobs like
# this one could start.
Waiting = namedtuple("Waiting", ("ms", "uid", "job", "asked", "kind", "more"))

ANY = Kind("", 0, ())
# A spooler publishes no more than this many further jobs that could start at once.
_MANY = 64
# Who holds less comes first, and a GPU counts as so many cores.
GPU_IN_CORES = 8
# On one's own machine, the jobs together may ask for this many times its cores.
_TIMES_SHARED = 4


def folder(root: str) -> str:
    """Return the folder of this machine's queue and journal below a root, which other machines may share."""
    return os.path.join(root, MACHINES, machine_name())


def now_ns() -> int:
    """Return nanoseconds since the machine was started, by a clock that is never set."""
    return int(time.clock_gettime(_BOOTTIME) * 1e9)


def started_ns(pid: int) -> int:
    """Return when a process was started, by the same clock; of those of one moment, the one with a lower pid is first.

    So the jobs of a loop wait in the order in which the agent has started their scripts, though these race.
    """
    ticks = start_time(pid)
    return int(ticks) * 10**9 // os.sysconf("SC_CLK_TCK") + pid if ticks else now_ns()


def now_s() -> int:
    """Return seconds since the machine was started, by the same clock."""
    return now_ns() // 10**9


def cores() -> int:
    """Return how many cores this process may use."""
    if sys.platform.startswith("linux"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_mb() -> int:
    """Return the size of the machine's memory."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) >> 20


def available_mb() -> int:
    """Return how much memory could be taken now without swapping."""
    for line in read_proc("meminfo").split(b"\n"):
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) >> 10
    # Kernels before 3.14 have no MemAvailable.
    return memory_mb()


def demand_of(spec: "Mapping[str, Any]") -> Demand:
    """Return what a job asks for; no memory if it does not say."""
    resources = spec["resources"]
    return Demand(resources["gpus"], resources["cores"], _mb(resources["memory_bytes"] or 0))


def weight(demand: Demand) -> int:
    """Return how much of the machine a job takes, as one number."""
    return int(demand.gpus * GPU_IN_CORES + demand.cores)


def kind_of(resources: "Mapping[str, Any]") -> Kind:
    """Return which GPUs will do for a job, by the `resources` of its spec.json."""
    kind = squeezed(resources.get("gpu_type") or "")
    memory_mb = _mb(resources.get("gpu_memory_bytes") or 0)
    return Kind(kind, memory_mb, only_of(resources))


def gpus_of_kind(kind: Kind, gpus: "Iterable[GpuInfo]") -> "list[str]":
    """List the UUIDs of the GPUs that will do."""
    allowed = allowed_gpus(gpus, kind.only)
    return [gpu.uuid for gpu in eligible_gpus(allowed, kind.type or None, kind.memory_mb << 20 or None)]


def limits_of(spec: "Mapping[str, Any]") -> UserLimits:
    """Return what the job's user may take on this host."""
    limits = spec.get("limits") or {}
    limit, memory = limits.get("cores"), limits.get("memory_bytes")
    # On one's own machine, jobs share the cores with all other programs, and need not wait for a free one.
    if limit is None and spec["scheduler"] == "local":
        limit = max(_TIMES_SHARED * cores(), spec["resources"]["cores"])
    return UserLimits(limits.get("gpus"), limit, None if memory is None else _mb(memory), limits.get("jobs"))


def shares_cores(limits: UserLimits, core_count: int) -> bool:
    """Return whether jobs with these limits share the cores in time, as all programs do: no job waits for another.

    Args:
        core_count: How many cores the machine has.
    """
    return bool(limits.cores is not None and limits.cores > core_count)


def _mb(size: int) -> int:
    return -(-size >> 20)


def reserved_gpus(
    free: "Sequence[str]", waiting: "Iterable[tuple[int, Optional[Container[str]]]]", last: "Optional[Container[str]]"
) -> "set[str]":
    """Return the GPUs that are kept for waiting jobs.

    Args:
        free: All free GPUs.
        waiting: How many each waiting job needs, and which will do; None: every one does.
        last: GPUs that are kept only if no others will do; None: all of them.
    """
    kept: "set[str]" = set()
    usable = sorted(free, key=lambda gpu: last is None or gpu in last)
    # Those that accept the fewest choose first, so that no place is lost.
    for count, gpus in sorted(waiting, key=lambda job: sum(job[1] is None or gpu in job[1] for gpu in free)):
        suitable = [gpu for gpu in usable if gpu not in kept and (gpus is None or gpu in gpus)]
        kept.update(suitable[:count])
    return kept


GPUS, CORES, MEMORY, OWN = "gpus", "cores", "memory", "own"


# What a machine has. free_gpus: GPUs that are neither held nor used, in PCI order.
MachineResources = namedtuple("MachineResources", ("cores", "memory_mb", "available_mb", "free_gpus"))
MachineResources.__new__.__defaults__ = ((),)


class RemainingResources:
    """What a user's next job may take.

    Args:
        machine: Its resources.
        running: All jobs that run, of all users.
        uid: The user.
        limits: What all of the user's jobs may take together. More cores than there are lift the machine's own cap on
            them: cores are shared in time.

    Attributes:
        core_users: uid -> cores that this user's jobs hold.
        memory_users: uid -> MB that they have asked for.
    """

    def __init__(self, machine: MachineResources, running: "Sequence[Running]", uid: int, limits: "UserLimits") -> None:
        own = [job.asked for job in running if job.uid == uid]
        self.free_gpus = list(machine.free_gpus)
        self._waiting: "list[tuple[int, Optional[Sequence[str]]]]" = []
        self.core_users: "dict[int, int]" = {}
        self.memory_users: "dict[int, int]" = {}
        for job in running:
            cores = 0 if job.shared else job.asked.cores
            self.core_users[job.uid] = self.core_users.get(job.uid, 0) + cores
            self.memory_users[job.uid] = self.memory_users.get(job.uid, 0) + job.asked.memory_mb
        self.cores: "int" = machine.cores - sum(self.core_users.values())
        self._core_count = machine.cores
        self.memory_mb = min(machine.memory_mb - sum(self.memory_users.values()), machine.available_mb)
        self.limits = limits
        self.own = [sum(column) for column in zip(*own)] + [len(own)] if own else [0, 0, 0, 0]

    def lacks(self, demand: Demand, gpus: "Optional[Sequence[str]]" = None) -> "list[str]":
        """List what is missing for a job that asks for this; empty if it may start.

        Args:
            gpus: The GPUs of its kind; None: every one is.
        """
        missing = self.lacks_room(demand, gpus)
        if CORES in missing and shares_cores(self.limits, self._core_count):
            missing.remove(CORES)
        return missing + ([OWN] if self.over(demand) else [])

    def lacks_room(self, demand: Demand, gpus: "Optional[Sequence[str]]" = None) -> "list[str]":
        """List what is missing for a job of any user, whose limits are not known."""
        missing = []
        if demand.gpus and len(self.left(gpus)) < demand.gpus:
            missing.append(GPUS)
        if self.cores < demand.cores:
            missing.append(CORES)
        if demand.memory_mb and self.memory_mb < demand.memory_mb:
            missing.append(MEMORY)
        return missing

    def suitable(self, gpus: "Optional[Sequence[str]]") -> "list[str]":
        """List the free GPUs among these."""
        return [gpu for gpu in self.free_gpus if gpus is None or gpu in gpus]

    def left(self, gpus: "Optional[Sequence[str]]") -> "list[str]":
        """List the free GPUs among these that are not reserved."""
        kept = reserved_gpus(self.free_gpus, self._waiting, gpus)
        return [gpu for gpu in self.suitable(gpus) if gpu not in kept]

    def over(self, demand: Demand) -> "list[str]":
        """List the limits of the user that it would exceed, by their names in clusterfn.yml."""
        limited = zip(("gpus", "cores", "memory", "jobs"), self.limits, self.own, list(demand) + [1])
        return [word for word, limit, used, more in limited if limit is not None and more and used + more > limit]

    def further(self, demand: Demand) -> int:
        """Return how many more such jobs the limits of the user allow."""
        limited = zip(self.limits, self.own, list(demand) + [1])
        rooms = [(limit - used) // more for limit, used, more in limited if limit is not None and more]
        return max(0, int(min(rooms + [_MANY])))

    def take(self, demand: Demand, gpus: "Optional[Sequence[str]]" = None) -> None:
        """Take what a job needs: it starts."""
        for gpu in self.left(gpus)[: demand.gpus]:
            self.free_gpus.remove(gpu)
        self._less(demand)
        self.count(demand)

    def reserve(self, demand: Demand, gpus: "Optional[Sequence[str]]" = None) -> None:
        """Keep what a waiting job needs, of these GPUs."""
        self._waiting.append((demand.gpus, gpus))
        self._less(demand)

    def _less(self, demand: Demand) -> None:
        self.cores -= demand.cores
        self.memory_mb -= demand.memory_mb

    def count(self, demand: Demand) -> None:
        """Count a job towards what the user may have."""
        self.own = [used + more for used, more in zip(self.own, list(demand) + [1])]
