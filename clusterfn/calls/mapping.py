"""Runs a map, from top to bottom, as `call` does for one call. `sent_group` has what is done with a group later.

function, arguments of each item -> host, environment -> bytes -> who gets how many -> one write -> a group
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.attributes import attribute, has_method, signature_of
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.supervisor.text import counted
from clusterfn.calls import chunking, history, job_display, submit
from clusterfn.calls.call import Prepared, job_name, prepare_packed, send_needs
from clusterfn.calls.chunking import MapOptions
from clusterfn.calls.failed_items import OnError, check_on_error
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.group_tracker import GroupTracker
from clusterfn.calls.sent_group import in_words, limits_of, track
from clusterfn.config import units
from clusterfn.config.job_spec import Group
from clusterfn.config.options import Options, unknown
from clusterfn.config.spec import Resources
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.hosts.connection import TreeFile
from clusterfn.packing import labels, payload_items
from clusterfn.packing.dependencies import Place, as_lists
from clusterfn.scheduler.base import SchedulerLimits

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import HostState
    from clusterfn.packing.payload import Payload

R = TypeVar("R")
_KEYWORDS = ("max_parallel", "chunksize", "on_error", "sequential_up_to", "strict")  # of `map` itself
AT_ONCE = 50  # items that run at the same time, unless max_workers= says how many
_USUAL_BYTES = 1 << 30  # what an item that does not say is taken to need on this machine


@dataclass(frozen=True)
class Caller:
    """What a caller that knows its items says of them.

    Attributes:
        labels: The name of each item in messages; else its plain arguments.
        before_send: Called with the group when its id is known and nothing has been sent.
    """

    labels: Sequence[str] = ()
    before_send: Callable[[GroupState], None] = lambda _: None


def run(
    function: Callable[..., R], iterables: Sequence[Iterable[Any]], options: Options, how: MapOptions,
    on_error: OnError = "collect", constants: Mapping[str, Any] | None = None, caller: Caller = Caller(),
) -> JobGroup[R, Any]:  # fmt: skip
    """Send `function(*each, **constants)` for each tuple of `zip(*iterables)`, and give the group.

    Raises:
        ConfigError, TypeError, PayloadError, EnvironmentBuildError, Unsatisfiable, HostError: Before anything is sent.
    """
    name = str(attribute(function, "__name__", "function"))
    if not iterables:
        raise TypeError(f"there is nothing to call {name} with: give the values of its arguments, as map(f, values)")
    _check(on_error, options)
    calls = _calls_of(iterables, name, how.strict)
    payload_items.check_calls(function, calls, constants or {})
    name = options.name or job_name(name)
    names = caller.labels or labels.labels(labels.rows_to_show(function, calls))
    if not calls:
        return JobGroup(GroupState("", name, "", "", 0))
    one, packed = _prepare(function, calls, constants, options)
    session, limits = one.session, SchedulerLimits()
    with job_display.nothing_runs():
        if session.scheduler.has_nodes:
            limits = limits_of(session, one.job.resources.gpus, one.job.host)
            group = chunking.in_arrays(len(calls), how, one.job.resources.time_s, limits)
        else:
            group = chunking.on_machine(len(calls), how, machine_capacity(session, one.job.resources))
    # The other nodes of an item may see the places of its inputs late, on a shared file system.
    alone = one.job.resources.nodes * one.job.resources.tasks_per_node == 1
    one_by_one = alone and session.scheduler.starts_one_by_one and packed.starts_one_by_one()
    group = chunking.in_blocks(group, how) if one_by_one else group
    job = one.job._replace(group=group, arguments=labels.of_all(names))
    say_how(one, group, how, limits)
    made = GroupState(job.id, job.name, job.host.name, layout.job_dir(job.root, job.id), len(calls), on_error, names)
    made.on_interrupt, made.asked, made.has_value = options.on_interrupt, job.resources, job.has_value
    made.given = submit.given_paths(session.root, one.payload)
    if not caller.labels:
        made.arguments = payload_items.argument_table(function, calls, constants or {})
        made.kept_arguments = payload_items.kept_arguments(function, calls, constants or {})
    if job.outputs:
        made.outputs_to = Path.cwd() / f"{job.name}-{job.id[:SHORT]}"
        console.tell(f"{job.id[:SHORT]} puts the files of item N into {made.outputs_to.name}/N")
    history.remember(made, one.config, job.results, job.secrets)
    caller.before_send(made)
    described = {layout.LABELS: names, layout.ARGUMENTS: made.arguments}
    files = {**packed.files(), **{name: json.dumps(list(each)).encode() for name, each in described.items()}}
    if packed.payload.inputs:
        files[layout.ITEM_INPUTS] = packed.described_inputs()
    _send(one._replace(job=job), files, made, track(session, job, made, limits))
    return JobGroup(made)


def _calls_of(iterables: Sequence[Iterable[Any]], name: str, strict: bool) -> list[tuple[Any, ...]]:
    """Return the arguments of each call.

    Raises:
        TypeError: One of the iterables is none.
        ConfigError: Some arguments would be left out, and nothing says that this is meant.
    """
    calls = list(zip(*as_lists(iterables, name)))
    lengths = [len(each) if has_method(each, "__len__") else None for each in iterables]  # type: ignore[arg-type]
    if strict and len(lengths) > 1 and any(each is not None and each != len(calls) for each in lengths):
        said = ", ".join("an iterator" if each is None else str(each) for each in lengths)
        raise ConfigError(
            f"{name}.map() got lists of different lengths: {said}; {counted(len(calls), 'call')} can be made",
            hint="give lists of the same length, or strict=False to leave out the rest",
        )
    return calls


def parse_map_options(
    max_parallel: object, chunksize: object, sequential_up_to: object = None, strict: object = False
) -> MapOptions:
    """Check the keywords of `map`.

    Raises:
        ConfigError: One of them is no number of items, or `strict` no bool.
    """
    if not isinstance(strict, bool):
        raise ConfigError(f"strict={strict!r:.60} is neither True nor False", hint="leave it out, or use False")
    chunk = None if chunksize == "auto" else _number("chunksize", chunksize, 1)
    turns = None if sequential_up_to is None else _number("sequential_up_to", sequential_up_to, 0)
    return MapOptions(_number("max_parallel", max_parallel, 1), chunk, turns, strict)


def check_constants(function: Callable[..., Any], constants: Mapping[str, object]) -> None:
    """Check the other keywords of `map`: each must be one of the function's.

    Raises:
        ConfigError: The function has no such argument.
    """
    signature = signature_of(function) if constants else None
    if signature is None:
        return
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    own = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    for keyword, value in constants.items():
        if keyword not in own:
            raise unknown("map() has", keyword, value, [*_KEYWORDS, *own])


def _number(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r} is not a number of items", hint=f"give a whole number of {least} or more")
    return value


def _check(on_error: str, options: Options) -> None:
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
    function: Callable[..., Any], calls: list[tuple[Any, ...]], constants: Mapping[str, Any] | None, options: Options
) -> tuple[Prepared, payload_items.Items]:
    """Prepare it as one call, with the function and all items as its payload."""
    kept: list[payload_items.Items] = []

    def pack(target: tuple[int, int] | None, place: Place) -> Payload:
        kept[:] = [payload_items.pack(function, calls, target, constants, place)]
        return kept[0].payload

    prepared = prepare_packed(function, pack, options)
    return prepared._replace(payload=kept[0].payload.with_own_buffers()), kept[0]


def machine_capacity(session: HostState, asked: Resources) -> chunking.MachineCapacity:
    facts, limits = session.connection.facts, session.capacity.limit(session.host).limits
    local = session.host.scheduler == "local"
    memory = min(facts.memory_bytes, limits.memory_bytes or facts.memory_bytes)
    count = session.capacity.count_gpus_for(asked) if asked.gpus else 0
    by_memory = memory // asked.memory_bytes if asked.memory_bytes else None
    by_gpus = min(count, count if limits.gpus is None else limits.gpus) // asked.gpus if asked.gpus else None
    cores = (limits.cores or facts.cpus) // asked.cores
    if local and (free := units.free_memory()) is not None:
        by_memory = min(memory, free) // (asked.memory_bytes or _USUAL_BYTES)
    return chunking.MachineCapacity(min(cores, limits.jobs or cores), by_memory, by_gpus, local)


def say_how(one: Prepared, group: Group, how: MapOptions, limits: SchedulerLimits) -> None:
    console.tell(f"{one.job.id[:SHORT]} {one.where}: {in_words(group)}")
    gpus, scheduler = one.job.resources.gpus, one.session.scheduler
    if how.sequential_up_to is not None or (gpus and not scheduler.has_nodes):
        place = "on GPUs of its own, waiting while others have them" if gpus else "in a process of its own"
        mode = f"PARALLEL processing, each item {place}"
        if group.at_once == 1 and group.count > 1:
            asked = f", as sequential_up_to={how.sequential_up_to} asks"
            mode = f"SEQUENTIAL processing{' to avoid GPU deadlock' if gpus and not scheduler.has_nodes else asked}"
        console.tell(f"Using {mode} ({one.job.name}: {group.count})")
    if scheduler.has_nodes:
        load = chunking.load_on_controller(group, how, one.job.resources.time_s, limits, scheduler.title)
        if load:
            console.tell(load)


def _send(one: Prepared, files: Mapping[str, bytes], made: GroupState, tracker: GroupTracker) -> None:
    """Send in one write what the host lacks, the group's folder, and the start of its elements."""
    session = one.session
    submit.await_room(session)
    inputs = submit.inputs_of(one.payload)
    needs, environment = send_needs(one, made)
    sent = [*submit.job_files(one.job, one.payload), *(TreeFile(name, data) for name, data in files.items())]
    folder = submit.send_folder(session, tracker, made, sent, needs, inputs)
    job_display.remember_going(made)
    tracker.inputs = one.payload.inputs
    tracker.start(range(1, tracker.spec.elements + 1), [*needs.before, folder])
    if environment and session.scheduler.has_nodes:
        environment.report_to(tracker.waits_for, tracker.cannot_have)
