"""Partitions the items of a map: how many elements (processes or array tasks), how large a chunk, how long. Pure.

Elements pull. So a chunk must only be small enough that none is left with much when the others have finished, and large
enough that files do not grow with items. It is at most a quarter of an element's even share. It is also no more than
half an hour of work, judged by what the items took so far, which only the element knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterfn.bridge.supervisor.text import format_duration
from clusterfn.config.job_spec import Group

if TYPE_CHECKING:
    from clusterfn.scheduler.base import SchedulerLimits

SEQUENTIAL_UP_TO = 2
LOCAL_AT_ONCE = 4
# An element of an array claims about this much work at a time.
AIM_S = 1800.0
_CHUNKS_EACH = 4
# A scheduler that states no limit is assumed to take this many jobs.
_MOST_JOBS = 10_000
# A job asks SLURM for one minute more than its work takes, so the work must leave that minute free.
_MARGIN_S = 60.0
_MANY = 500
_MOST_BLOCKS = 1000


@dataclass(frozen=True)
class MapOptions:
    """The keywords of `map` that say how its items are shared out.

    Attributes:
        max_parallel: Items that run side by side, at most.
        chunk: Items that an element claims at a time; None: as it turns out.
        sequential_up_to: Up to this many items run one at a time; None: two items that would share a GPU do.
        strict: Whether lists of different lengths are rejected.
    """

    max_parallel: int = 50
    chunk: int | None = None
    sequential_up_to: int | None = None
    strict: bool = False

    def asks_for_turns(self, count: int) -> bool:
        """Whether so few items are to run one at a time."""
        return self.sequential_up_to is not None and count <= self.sequential_up_to


@dataclass(frozen=True)
class MachineCapacity:
    """How many items a host without a scheduler can run at a time, by cores, memory and GPUs; None: not limited.

    Attributes:
        local: Whether it is this machine.
    """

    by_cores: int
    by_memory: int | None = None
    by_gpus: int | None = None
    local: bool = False

    def room(self) -> int:
        """Return how many items may run side by side; at least one, which waits for what it needs."""
        most = [self.by_cores, *(each for each in (self.by_memory, self.by_gpus) if each is not None)]
        return max(1, min(*most, LOCAL_AT_ONCE) if self.local else min(most))


def on_machine(count: int, how: MapOptions, machine: MachineCapacity) -> Group:
    """Share out items on a host without a scheduler: as many processes as fit, which take what comes.

    Example:
        >>> on_machine(100, MapOptions(), MachineCapacity(by_cores=8))
        Group(count=100, chunk=4, elements=8, at_once=8, per_element=None, element_s=None, aim_s=1800.0, block=None)
    """
    if how.sequential_up_to is not None:
        in_turns = how.asks_for_turns(count)
    else:
        in_turns = machine.by_gpus is not None and machine.by_gpus < count <= SEQUENTIAL_UP_TO
    at_once = 1 if in_turns else max(1, min(count, how.max_parallel, machine.room()))
    aim_s = AIM_S if how.chunk is None else None
    chunk = how.chunk or math.ceil(count / (_CHUNKS_EACH * at_once))
    elements = min(at_once, math.ceil(count / chunk))
    return Group(count, chunk, elements, elements, aim_s=aim_s)


def in_arrays(count: int, how: MapOptions, item_s: float | None, limits: SchedulerLimits) -> Group:
    """Share out items on a scheduler with nodes: as elements of job arrays.

    Without `time=` there are as many as may run at once, and they pull until nothing is left. With it an element asks
    for the time of one chunk, as far as the partition allows. So there is one element for each chunk; those that are
    not needed leave the queue. A chunk size that was asked for is one element's share.

    Example:
        >>> in_arrays(1000, MapOptions(), None, SchedulerLimits(array=1000))
        Group(count=1000, chunk=5, elements=50, at_once=50, per_element=None, element_s=None, aim_s=1800.0, block=None)
    """
    at_once = 1 if how.asks_for_turns(count) else min(count, how.max_parallel)
    fixed = how.chunk
    chunk = fixed or math.ceil(count / (_CHUNKS_EACH * at_once))
    longest_s = None if item_s is None else _longest_s(item_s, limits)
    # `int` raises for infinity.
    if fixed is None and item_s and longest_s and longest_s < math.inf:
        chunk = max(1, min(chunk, int(longest_s // item_s)))
    chunks = math.ceil(count / chunk)
    elements = min(at_once, chunks) if fixed is None and item_s is None else min(chunks, limits.jobs or _MOST_JOBS)
    element_s = None if item_s is None or longest_s is None else max(item_s, min(chunk * item_s, longest_s))
    per_element = 1 if fixed is not None and elements == chunks else None
    aim_s = AIM_S if fixed is None else None
    return Group(count, chunk, elements, min(at_once, elements), per_element, element_s, aim_s)


def in_blocks(group: Group, how: MapOptions) -> Group:
    """Let items start as their inputs end: one by one, or in chunks of the size that was asked for.

    There are at most 1000 blocks, as each is a claim and a question of every element. An element claims one at a time.

    Example:
        >>> in_blocks(Group(count=10_000, chunk=50, elements=50, at_once=50), MapOptions()).block
        10
    """
    return replace(group, block=how.chunk or math.ceil(group.count / _MOST_BLOCKS))


def _longest_s(item_s: float, limits: SchedulerLimits) -> float:
    return math.inf if limits.time_s is None else max(item_s, limits.time_s - _MARGIN_S)


def load_on_controller(
    group: Group, how: MapOptions, item_s: float | None, limits: SchedulerLimits, scheduler: str
) -> str:  # fmt: skip
    """Say what many elements of one item mean for the scheduler, and what makes fewer; "" if there are few.

    Args:
        group, how, item_s, limits: What `in_arrays` gave, and what it was given.
        scheduler: Its name for people.
    """
    auto = in_arrays(group.count, replace(how, chunk=None), item_s, limits)
    if group.chunk > 1 or group.elements <= _MANY or (group == auto and item_s is None):
        return ""
    mean = f"each of which {scheduler}'s controller schedules, starts and records by itself for one item"
    many = f"{group.elements} elements of job arrays, {mean}"
    if auto.elements < group.elements:
        return f'chunksize=1 makes {many}: chunksize="auto" would make {auto.elements}'
    if item_s and limits.time_s and int(_longest_s(item_s, limits) // item_s) < 2:
        least, most = format_duration(item_s), format_duration(limits.time_s)
        fills = f"{least} for each item fill the {most} that the partition gives"
        return f"{fills}, so there are {many}: less time=, or a partition that gives more, would make fewer"
    return f"max_parallel={how.max_parallel} makes {many}: fewer at a time would make fewer"
