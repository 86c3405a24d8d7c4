"""Runs a map, from top to bottom, as `call` does for one call; attaches to a group, and retries items of one.

function, arguments of each item -> host, environment -> bytes -> who gets how many -> one write -> a group
"""

from __future__ import annotations

import functools
import inspect
import json
import posixpath
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from clusterfn.bridge import layout
from clusterfn.calls import chunking, console, history, job_display, payload_items, remote_state, submit
from clusterfn.calls.call import Prepared, job_name, prepare_packed, secret_values, send_needs
from clusterfn.calls.chunking import MapOptions
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.group_tracker import GroupTracker
from clusterfn.calls.job import SHORT
from clusterfn.config import config_file, units
from clusterfn.config.options import Options, unknown
from clusterfn.config.spec import Group, JobSpec, Resources
from clusterfn.errors import ClusterfnError, ConfigError, PayloadError
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import Reply, TreeFile
from clusterfn.scheduler.base import SchedulerLimits

if TYPE_CHECKING:
    from clusterfn.calls.payload import Payload
    from clusterfn.hosts.host_state import HostState

R = TypeVar("R")
OnError = Literal["collect", "raise"]
_TIMEOUT_S = 60.0
_MANY = 500
_KEYWORDS = ("max_parallel", "chunksize", "on_error", "sequential_up_to")  # of `map` itself
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
    name = str(getattr(function, "__name__", "function"))
    if not iterables:
        raise TypeError(f"there is nothing to call {name} with: give the values of its arguments, as map(f, values)")
    _check(on_error, options)
    calls = list(zip(*iterables))
    name = job_name(options.name or name)
    labels = caller.labels or [payload_items.label(args) for args in calls]
    if not calls:
        return JobGroup(GroupState("", name, "", "", 0))
    one, packed = _prepare(function, calls, constants, options)
    session, limits = one.session, SchedulerLimits()
    with job_display.nothing_runs():
        if session.scheduler.has_nodes:
            limits = _limits(session, one.job.resources.gpus)
            group = chunking.in_arrays(len(calls), how, one.job.resources.time_s, limits)
        else:
            group = chunking.on_machine(len(calls), how, machine_capacity(session, one.job.resources))
    job = replace(one.job, group=group)
    say_how(one, group, how, limits)
    made = GroupState(job.id, job.name, job.host.name, layout.job_dir(job.root, job.id), len(calls), on_error, labels)
    made.on_interrupt, made.asked = options.on_interrupt, job.resources
    made.given = submit.given_paths(session.root, one.payload)
    history.remember(made, one.config)
    caller.before_send(made)
    files = {**packed.files(), layout.LABELS: json.dumps(list(labels)).encode()}
    _send(replace(one, job=job), files, made, _track(session, job, made, limits))
    return JobGroup(made)


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
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values() if constants else ()
    except (TypeError, ValueError, NameError):  # of a builtin; of an annotation that fails
        return
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
    if on_error not in ("collect", "raise"):
        raise ConfigError(f"on_error={on_error!r} is not known", hint='use "collect" or "raise"')
    if (options.nodes or 1) > 1:
        message = f"nodes={options.nodes} does not go with map: each item has one node"
        raise ConfigError(message, hint="use .with_options(nodes=1).map(…), or .submit(…) for each call")
    if options.outputs:
        raise ConfigError(
            "outputs= does not go with map: the files of many items would overwrite each other",
            hint="fetch those of one item by group.download(index, pattern, to=…)",
        )


def _track(session: HostState, job: JobSpec, made: GroupState, limits: SchedulerLimits) -> GroupTracker:
    tracker = GroupTracker(session, job, made, limits)
    made.send_again = functools.partial(retry_items, tracker)
    return tracker


def _prepare(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], constants: Mapping[str, Any] | None, options: Options
) -> tuple[Prepared, payload_items.Items]:
    """Prepare it as one call, with the function and all items as its payload."""
    kept: list[payload_items.Items] = []

    def pack(target: tuple[int, int] | None) -> Payload:
        kept[:] = [payload_items.pack(function, calls, target, constants)]
        return kept[0].payload

    prepared = prepare_packed(function, pack, options)
    blobs = {digest: memoryview(bytes(view)) for digest, view in kept[0].payload.blobs.items()}
    return replace(prepared, payload=replace(prepared.payload, blobs=blobs)), kept[0]


def _limits(session: HostState, gpus: int) -> SchedulerLimits:
    """Ask what the scheduler allows, once for each host."""
    told: list[str] | None = session.limits
    if told is None:
        scheduler = session.scheduler
        asked = [session.connection.run(argv, unset=scheduler.unset) for argv in scheduler.limits_commands()]
        told = session.limits = [_output(reply) for reply in asked]
    return session.scheduler.limits(told, gpus)


def _output(reply: Reply[Any]) -> str:
    """Return what a command printed; "" if it failed or does not exist."""
    try:
        ran = reply.result(_TIMEOUT_S)
    except ClusterfnError:
        return ""
    return str(ran.out.decode("utf-8", "replace")) if ran.rc == 0 else ""


def machine_capacity(session: HostState, asked: Resources) -> chunking.MachineCapacity:
    facts, limits = session.connection.facts, session.host.limits
    local = session.host.scheduler == "local"
    memory = min(facts.memory_bytes, limits.memory_bytes or facts.memory_bytes)
    cards = session.cards_for(asked) if asked.gpus else 0
    by_memory = memory // asked.memory_bytes if asked.memory_bytes else None
    by_cards = min(cards, cards if limits.gpus is None else limits.gpus) // asked.gpus if asked.gpus else None
    cores = (limits.cores or facts.cpus) // asked.cores
    if local and (free := units.free_memory()) is not None:
        by_memory = min(memory, free) // (asked.memory_bytes or _USUAL_BYTES)
    return chunking.MachineCapacity(min(cores, limits.jobs or cores), by_memory, by_cards, local)


def say_how(one: Prepared, group: Group, how: MapOptions, limits: SchedulerLimits) -> None:
    console.tell(f"{one.job.id[:SHORT]} {one.where}: {_counted(group)}")
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


def _counted(group: Group) -> str:
    return f"{group.count} item{'s' if group.count > 1 else ''}, {group.at_once} at a time"


def _send(one: Prepared, files: Mapping[str, bytes], made: GroupState, tracker: GroupTracker) -> None:
    """Send in one write what the host lacks, the group's folder, and the start of its elements."""
    session = one.session
    before, environment = send_needs(one, made)
    sent = [*submit.job_files(one.job, one.payload), *(TreeFile(name, data) for name, data in files.items())]
    folder = submit.send_folder(session, tracker, made, sent, before)
    job_display.remember_going(made)
    tracker.start(range(1, tracker.spec.elements + 1), [*before, folder])
    if environment and session.scheduler.has_nodes:
        environment.report_to(tracker.waits_for, tracker.cannot_have)


# groups that were sent before


def attach(session: HostState, spec: Mapping[str, Any]) -> JobGroup[Any, Any]:
    """Attach to the group that was sent with this spec.json, from its beginning."""
    job = JobSpec.from_json(spec, session.host, session.connection.facts.python)
    group = cast(Group, job.group)
    folder = layout.job_dir(job.root, job.id)
    (told,) = remote_files.read_each(session.connection, [posixpath.join(folder, layout.LABELS)])
    labels = json.loads(told) if told else ()
    made = GroupState(job.id, job.name, session.host.name, folder, group.count, labels=labels)
    made.sent_here, made.asked = False, job.resources
    limits = _limits(session, 0) if session.scheduler.has_nodes else SchedulerLimits()
    tracker = _track(session, job, made, limits)
    left = remote_state.read_group_state(session.connection, tracker.folder)
    tracker.attach(left)
    remote_state.wait_until_caught_up(lambda: tracker.is_caught_up(left))
    return JobGroup(made)


def retry_items(old: GroupTracker, failed: Sequence[int]) -> GroupState:
    """Send these items of a group that has ended as a new group, with the bytes that are still on the host."""
    group = old.group
    names = (layout.SPEC, layout.SCRIPT, layout.PAYLOAD, layout.ITEMS, layout.ITEMS_INDEX)
    paths = [posixpath.join(old.folder, name) for name in names]
    spec, script, payload, data, index = remote_files.read_each(old.connection, paths)
    if spec is None or script is None or payload is None or data is None or index is None:
        raise PayloadError("the items are no longer on the host", host=group.host, job=group.id, hint="call map again")
    job = replace(old.job, id=secrets.token_hex(8), group=_share_again(old.spec, len(failed), len(group)))
    labels = [group.label(each) for each in failed]
    told = json.loads(spec.replace(group.id.encode(), job.id.encode()))
    files = {
        layout.SPEC: json.dumps({**told, "group": asdict(cast(Group, job.group))}).encode(),
        layout.SCRIPT: script.replace(group.id.encode(), job.id.encode()),
        layout.PAYLOAD: payload,
        layout.LABELS: json.dumps(labels).encode(),
        **_select(data, json.loads(index), failed),
    }
    if told["secrets"]:  # from this process: the host has deleted its own
        files[layout.SECRETS] = json.dumps(secret_values(Options(secrets=tuple(told["secrets"])))).encode()
    made = GroupState(job.id, job.name, group.host, layout.job_dir(job.root, job.id), len(failed), labels=labels)
    made.on_interrupt, made.raises, made.given = group.on_interrupt, group.raises, group.given
    made.asked = group.asked
    history.remember(made, config_file.load().path)
    counted = _counted(cast(Group, job.group))
    console.tell(f"{job.id[:SHORT]} {job.name} on {group.host} (again, of {group.id[:SHORT]}): {counted}")
    tracker = _track(old.session, job, made, old.limits)
    sent = [TreeFile(name, data, 0o700 if name == layout.SCRIPT else 0o600) for name, data in files.items()]
    folder = submit.send_folder(old.session, tracker, made, sent, [])
    tracker.start(range(1, tracker.spec.elements + 1), [folder])
    job_display.remember_going(made)
    return made


def _share_again(group: Group, count: int, of: int) -> Group:
    """Share out those items of a group that are left."""
    others_returned = group.others_returned or count < of
    chunk = 1 if count <= _MANY else group.chunk
    elements = min(group.elements, -(-count // chunk))
    at_once = min(group.at_once, elements)
    return replace(
        group, count=count, chunk=chunk, elements=elements, at_once=at_once, per_element=None,
        others_returned=others_returned,
    )  # fmt: skip


def _select(data: bytes, ends: Sequence[int], wanted: Sequence[int]) -> dict[str, bytes]:
    parts = [data[ends[index - 1] if index else 0 : ends[index]] for index in wanted]
    total, new = 0, []
    for part in parts:
        total += len(part)
        new.append(total)
    return {layout.ITEMS: b"".join(parts), layout.ITEMS_INDEX: json.dumps(new).encode()}
