"""Runs a map, from top to bottom, as `call` does for one call.

function, arguments of each item -> host, environment -> bytes -> who gets how many -> one write -> a group

The items are shared out in chunks, which elements (processes or array tasks) pull. So a chunk must only be small enough
that none is left with much when the others have finished, and large enough that files do not grow with items. It is at
most a quarter of an element's even share. It is also no more than half an hour of work, judged by what the items took
so far, which only the element knows.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.attributes import has_method, signature_of
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.supervisor.text import counted, in_one_line
from clusterfn.calls import history, job_display, leaving, sending, shared_group
from clusterfn.calls.call import Prepared, complete, hosts_of, name_of
from clusterfn.calls.demand import demand_of, job_name
from clusterfn.calls.failed_items import OnError, check_on_error
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_run import GroupRun
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.sent_group import limits_of
from clusterfn.config import units
from clusterfn.config.job_spec import MOST_ITEMS, Group
from clusterfn.config.options import Options, unknown
from clusterfn.config.spec import Resources
from clusterfn.display import console, labels
from clusterfn.errors import ClusterfnError, ConfigError, EnvironmentBuildError, HostError, LockError
from clusterfn.hosts.connection import TreeFile
from clusterfn.packing import payload_items
from clusterfn.packing.dependencies import as_lists
from clusterfn.public_api import check_calls, check_values
from clusterfn.scheduler.base import SchedulerLimits

if TYPE_CHECKING:
    from clusterfn.config.config_file import CallHost
    from clusterfn.hosts.host_state import HostState

R = TypeVar("R")
_KEYWORDS = ("max_parallel", "chunksize", "on_error", "sequential_up_to")  # of `map` itself
AT_ONCE = 50  # items that run at the same time, unless max_workers= says how many
_USUAL_BYTES = 1 << 30  # what an item that does not say is taken to need on this machine
SEQUENTIAL_UP_TO = 2
LOCAL_AT_ONCE = 4
# An element of an array claims about this much work at a time.
AIM_S = 1800.0
_CHUNKS_EACH = 4
# What an element has claimed stays with it, so chunks are smaller where other hosts may get what is left.
_FINER = 4
# A scheduler that states no limit is assumed to take this many jobs.
_MOST_JOBS = 10_000
# A job asks SLURM for one minute more than its work takes, so the work must leave that minute free.
_MARGIN_S = 60.0


def run(
    function: Callable[..., R],
    iterables: Sequence[Iterable[Any]],
    options: Options,
    how: MapOptions,
    on_error: OnError | None = None,
    constants: Mapping[str, Any] | None = None,
    given_labels: Sequence[str] = (),
) -> JobGroup[R, Any]:
    """Send `function(*each, **constants)` for each tuple of `zip(*iterables)`, and give the group.

    Args:
        given_labels: The name of each item in messages, of a caller that knows its items; else its plain arguments.

    Raises:
        ConfigError, TypeError, PayloadError, EnvironmentBuildError, Unsatisfiable, HostError: Before anything is sent.
    """
    name = name_of(function)
    if not iterables:
        raise TypeError(f"there is nothing to call {name} with: give the values of its arguments, as map(f, values)")
    _check(on_error, options)
    calls = _calls_of(iterables, name)
    check_calls(function, calls, constants or {})
    check_values(function, calls, constants or {})
    name = options.name or job_name(name)
    names = given_labels or labels.labels(labels.rows_to_show(function, calls))
    if not calls:
        return JobGroup(GroupState("", name, "", "", 0))
    shares = _share_out(function, calls, constants, options, how)
    job, hosts = shares[0].one.job, ", ".join(share.one.job.host.name for share in shares)
    made = GroupState(job.id, job.name, hosts, layout.job_dir(job.root, job.id), len(calls))
    made.on_error, made.labels = on_error, names
    made.on_interrupt, made.asked, made.has_value = options.on_interrupt, job.resources, job.has_value
    if not given_labels:
        made.arguments = labels.argument_table(function, calls, constants or {})
    if job.outputs:
        made.outputs_to = Path.cwd() / f"{job.name}-{job.id[:SHORT]}"
        console.tell(f"{job.id[:SHORT]} puts the files of item N into {made.outputs_to.name}/N")
    return JobGroup(made, _send(shares[0], made)) if len(shares) == 1 else _send_to_all(shares, made)


def _send_to_all(shares: Sequence[HostShare], whole: GroupState) -> shared_group.SharedGroup[Any, Any]:
    """Send each host its share; if that fails for one, the others keep theirs, and `retry_failed` gives them that."""
    parts = shared_group.Parts(whole)
    shared = [(share.one.job.host.name, share.one.job.id, len(share.own)) for share in shares]
    for share in shares:
        job = share.one.job
        part = shared_group.PartState(parts, job.id, job.host.name, layout.job_dir(job.root, job.id), share.own)
        try:
            parts.add(_send(share, part, shared))
        except ClusterfnError as error:
            if not parts.runs:
                raise
            parts.lose(share.own, error)
    return shared_group.SharedGroup(parts)


class HostShare(NamedTuple):
    """What one host gets of a map: the items `own` of all that are packed, and what its scheduler allows."""

    one: Prepared
    packed: payload_items.Items
    own: range
    limits: SchedulerLimits


def _share_out(
    function: Callable[..., Any],
    calls: list[tuple[Any, ...]],
    constants: Mapping[str, Any] | None,
    options: Options,
    how: MapOptions,
) -> list[HostShare]:
    """Share out the items by how many each host can run at a time; raise as `run`.

    That is one if it would wait, and a mean number if only its scheduler knows. Of several hosts, one for which nothing
    can be prepared is passed over.
    """
    # Items that run one at a time need one place.
    in_turns = how.asks_for_turns(len(calls)) or min(len(calls), how.max_parallel) == 1
    if how.sequential_up_to and not in_turns:
        # A small share of many items is no small map.
        how = replace(how, sequential_up_to=0)
    chosen = hosts_of(options, name_of(function), [calls, constants], every=not in_turns)
    prepared: list[tuple[Prepared, payload_items.Items, int | None]] = []
    for call_host, starts in chosen:
        try:
            one, packed = _prepare(function, calls, constants, call_host)
        except (EnvironmentBuildError, HostError, LockError) as error:
            if not prepared and call_host is chosen[-1][0]:
                raise
            console.warn(f"{call_host.host.name} gets none of the items: {in_one_line(error.message)}")
            continue
        is_cluster = one.host.scheduler.has_nodes
        room = None if is_cluster else machine_capacity(one.host, one.job.resources).room()
        prepared.append((one, packed, room if starts else 1))
    rooms = [room for _, _, room in prepared if room] or [1]
    weights = [room or sum(rooms) / len(rooms) for _, _, room in prepared]
    at_once = [len(some) for some in shared_group.shares(how.max_parallel, weights)]
    owned = shared_group.shares(len(calls), [most and weight for most, weight in zip(at_once, weights)])
    return [
        _share(one, packed, own, replace(how, max_parallel=most))
        for (one, packed, _), own, most in zip(prepared, owned, at_once)
        if own
    ]


def _share(one: Prepared, packed: payload_items.Items, own: range, how: MapOptions) -> HostShare:
    """Return what a host gets, once it is known how it shares that out in turn; say it."""
    count, limits = len(own), SchedulerLimits()
    with job_display.nothing_runs():
        if one.host.scheduler.has_nodes:
            limits = limits_of(one.host, one.job.resources.gpus, one.job.host)
            group = in_arrays(count, how, one.job.resources.time_s, limits)
        else:
            group = on_machine(count, how, machine_capacity(one.host, one.job.resources))
            if count < len(packed.ends) and how.chunk is None:
                group = replace(group, chunk=math.ceil(group.chunk / _FINER))
    say_how(one, group, how)
    return HostShare(one._replace(job=one.job._replace(group=group)), packed, own, limits)


def _calls_of(iterables: Sequence[Iterable[Any]], name: str) -> list[tuple[Any, ...]]:
    """Return the arguments of each call.

    Raises:
        TypeError: One of the iterables is none.
        ConfigError: Some arguments would be left out, or there are too many.
    """
    calls = list(itertools.islice(zip(*as_lists(iterables, name)), MOST_ITEMS + 1))
    if len(calls) > MOST_ITEMS:
        hint = "send fewer; an iterator without an end needs one: itertools.islice(items, 1000)"
        raise ConfigError(f"{name}.map() got more than {MOST_ITEMS:,} items", hint=hint)
    lengths = [len(values) if has_method(values, "__len__") else None for values in iterables]  # type: ignore[arg-type]
    if any(length is not None and length != len(calls) for length in lengths):
        said = ", ".join("an iterator" if length is None else str(length) for length in lengths)
        raise ConfigError(
            f"{name}.map() got lists of different lengths: {said}; {counted(len(calls), 'call')} can be made",
            hint="give lists of the same length: xs[:3] is the first three",
        )
    return calls


def parse_map_options(max_parallel: object, chunksize: object, sequential_up_to: object = None) -> MapOptions:
    """Check the keywords of `map`.

    Raises:
        ConfigError: One of them is no number of items.
    """
    chunk = None if chunksize == "auto" else _number("chunksize", chunksize, 1)
    turns = None if sequential_up_to is None else _number("sequential_up_to", sequential_up_to, 0)
    return MapOptions(_number("max_parallel", max_parallel, 1), chunk, turns)


def check_constants(function: Callable[..., Any], constants: Mapping[str, object]) -> None:
    """Check the other keywords of `map`: each must be one of the function's.

    Raises:
        ConfigError: The function has no such argument.
    """
    signature = signature_of(function) if constants else None
    if signature is None:
        return
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if Parameter.VAR_KEYWORD in kinds.values():
        return
    own = [name for name, kind in kinds.items() if kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    for keyword, value in constants.items():
        if keyword not in own:
            raise unknown("map() has", keyword, value, [*_KEYWORDS, *own])


def _number(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r} is not a number of items", hint=f"give a whole number of {least} or more")
    return value


def _check(on_error: str | None, options: Options) -> None:
    if on_error is not None:
        check_on_error(on_error)
    if options.requeue:
        raise ConfigError(
            "requeue= cannot be used with map", hint="use .with_options(requeue=[]).map(…), or .submit(…) for each call"
        )
    if options.keep:
        raise ConfigError(
            "keep=True cannot be used with map, which fetches all values",
            hint="use .with_options(keep=False).map(…), or .submit(…) for each call",
        )


def _prepare(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], constants: Mapping[str, Any] | None, chosen: CallHost
) -> tuple[Prepared, payload_items.Items]:
    """Prepare it as one call, with the function and all items as its payload."""
    with job_display.nothing_runs():
        demand = demand_of(chosen, name_of(function))
        python = demand.expected_python()
        with job_display.preparing(demand.job.name):
            items = payload_items.pack(function, calls, python, constants, demand.place)
        environment = demand.find_environment(items.payload)
        if environment.python != python:
            # Code goes to another Python as text.
            with job_display.preparing(demand.job.name):
                items = payload_items.pack(function, calls, environment.python, constants, demand.place)
        prepared = complete(demand, items.payload, environment, function)
    return prepared._replace(payload=items.payload.with_own_buffers()), items


def machine_capacity(host: HostState, asked: Resources) -> MachineCapacity:
    facts, limits = host.connection.facts, host.settings.limits
    local = host.settings.scheduler == "local"
    memory = min(facts.memory_bytes, limits.memory_bytes or facts.memory_bytes)
    count = host.capacity.count_gpus_for(asked) if asked.gpus else 0
    by_memory = memory // asked.memory_bytes if asked.memory_bytes else None
    most = count if limits.gpus is None else min(count, limits.gpus)
    by_gpus = most // asked.gpus if asked.gpus else None
    cores = (limits.cores or facts.cpus) // asked.cores
    if local and (free := units.free_memory()) is not None:
        by_memory = min(memory, free) // (asked.memory_bytes or _USUAL_BYTES)
    return MachineCapacity(min(cores, limits.jobs or cores), by_memory, by_gpus, local)


def say_how(one: Prepared, group: Group, how: MapOptions) -> None:
    console.tell(f"{one.job.id[:SHORT]} {one.where}: {group.in_words}")
    gpus, scheduler = one.job.resources.gpus, one.host.scheduler
    if how.sequential_up_to is not None or (gpus and not scheduler.has_nodes):
        place = "on GPUs of its own, waiting while others have them" if gpus else "in a process of its own"
        mode = f"PARALLEL processing, each item {place}"
        if group.at_once == 1 and group.count > 1:
            asked = f", as sequential_up_to={how.sequential_up_to} asks" if how.asks_for_turns(group.count) else ""
            mode = f"SEQUENTIAL processing{' to avoid GPU deadlock' if gpus and not scheduler.has_nodes else asked}"
        console.tell(f"Using {mode} ({one.job.name}: {group.count})")


def _send(share: HostShare, made: GroupState, shared: Sequence[tuple[str, str, int]] = ()) -> GroupRun:
    """Send in one write what the host lacks, the group's folder, and the start of its elements.

    `shared` names all parts of a map on several hosts, each by its host, its id and its number of items.
    """
    one, packed, own, limits = share
    host, job = one.host, one.job._replace(arguments=labels.of_all(made.labels), shared=shared)
    made.given = sending.given_paths(host.root, one.payload)
    history.remember(made, one.config, job.results, job.secrets)
    # Another host may later have some of its items run here.
    order = [*own, *(index for index in range(len(made)) if index not in own)]
    described = {layout.LABELS: made.labels, layout.ARGUMENTS: made.arguments}
    files = {name: json.dumps(list(texts)).encode() for name, texts in described.items()}
    files.update(payload_items.files_of(packed.data, packed.ends, order))
    if one.payload.inputs:
        files[layout.ITEM_INPUTS] = packed.described_inputs()
    run = GroupRun(host, job, made, limits)
    needs = sending.send_needs(host, one.payload, one.environment)
    sent = [*sending.job_files(job, one.payload), *(TreeFile(name, data) for name, data in files.items())]
    folder = sending.send_folder(run.queue, made, sent, needs)
    leaving.remember_going(made)
    run.queue.inputs = one.payload.inputs
    run.start(range(1, run.spec.elements + 1), [*needs.before, folder])
    if needs.environment is not None:
        needs.environment.report_to(run.elements.waits_for, run.elements.cannot_have)
    return run


@dataclass(frozen=True)
class MapOptions:
    """The keywords of `map` that say how its items are shared out.

    Attributes:
        max_parallel: Items that run side by side, at most.
        chunk: Items that an element claims at a time; None: as it turns out.
        sequential_up_to: Up to this many items run one at a time; None: two items that would share a GPU do.
    """

    max_parallel: int = 50
    chunk: int | None = None
    sequential_up_to: int | None = None

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
        most = [self.by_cores, *(limit for limit in (self.by_memory, self.by_gpus) if limit is not None)]
        return max(1, min(*most, LOCAL_AT_ONCE) if self.local else min(most))


def on_machine(count: int, how: MapOptions, machine: MachineCapacity) -> Group:
    """Share out items on a host without a scheduler: as many processes as fit, which take what comes.

    Example:
        >>> on_machine(100, MapOptions(), MachineCapacity(by_cores=8))
        Group(count=100, chunk=4, elements=8, at_once=8, per_element=None, element_s=None, aim_s=1800.0)
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
        Group(count=1000, chunk=5, elements=50, at_once=50, per_element=None, element_s=None, aim_s=1800.0)
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


def _longest_s(item_s: float, limits: SchedulerLimits) -> float:
    return math.inf if limits.time_s is None else max(item_s, limits.time_s - _MARGIN_S)
