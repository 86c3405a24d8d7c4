"""The story of a map, from top to bottom, as `dispatch` tells that of one call.

function, arguments of each item -> host, environment -> bytes -> who gets how many -> one write -> a group
"""

from __future__ import annotations

import json
import posixpath
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar, cast

from clusterfn import config
from clusterfn.bridge import layout
from clusterfn.calls import array_tasks, catch_up, chunking, dispatch, history, job_display, payload_items, submit
from clusterfn.calls.chunking import Wish
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.group_tracker import Gathering
from clusterfn.calls.job import SHORT
from clusterfn.calls.job_display import remember_going
from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.payload import Payload
from clusterfn.config import units
from clusterfn.config.spec import Building, Group, Interpreter, JobSpec, Options, Resources
from clusterfn.errors import ClusterfnError, ConfigError, PayloadError
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import Reply, TreeFile
from clusterfn.hosts.host_state import Session
from clusterfn.hosts.transfer import Sending
from clusterfn.scheduler.base import Limits

R = TypeVar("R")
OnError = Literal["collect", "raise"]
_TIMEOUT_S = 60.0
_MANY = 500
_USUAL_BYTES = 1 << 30  # what an item that does not say is taken to need on this machine


def _tell_nobody(_: GroupState) -> None:
    """For callers who need not know."""


@dataclass(frozen=True)
class Caller:
    """What a caller that knows its items says of them.

    Attributes:
        labels: What a person calls each item; else its plain arguments.
        before_send: Is told of the group when its id is known and nothing has been sent.
    """

    labels: Sequence[str] = ()
    before_send: Callable[[GroupState], None] = _tell_nobody


def run(
    function: Callable[..., R], iterables: Sequence[Iterable[Any]], options: Options, wish: Wish,
    on_error: OnError = "collect", caller: Caller = Caller(),
) -> JobGroup[R, Any]:  # fmt: skip
    """Send `function(*each)` for each tuple of `zip(*iterables)`, and give the group.

    Raises:
        ConfigError, TypeError, PayloadError, EnvironmentBuildError, Unsatisfiable, HostError: Before anything is sent.
    """
    if not iterables:
        name = getattr(function, "__name__", "function")
        raise TypeError(f"there is nothing to call {name} with: give the values of its arguments, as map(f, values)")
    _check(on_error, options)
    return _run(function, list(zip(*iterables)), options, wish, on_error, caller)


def wish(max_parallel: object, chunksize: object, sequential_up_to: object = None) -> Wish:
    """What the keywords of `map` ask for.

    Raises:
        ConfigError: One of them is no number of items.
    """
    chunk = None if chunksize == "auto" else _number("chunksize", chunksize, 1)
    turns = None if sequential_up_to is None else _number("sequential_up_to", sequential_up_to, 0)
    return Wish(_number("max_parallel", max_parallel, 1), chunk, turns)


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


def _run(
    function: Callable[..., R], calls: list[tuple[Any, ...]], options: Options, wish: Wish, on_error: OnError,
    caller: Caller,
) -> JobGroup[R, Any]:  # fmt: skip
    name = dispatch.job_name(options.name or str(getattr(function, "__name__", "function")))
    labels = caller.labels or [payload_items.label(args) for args in calls]
    if not calls:
        return JobGroup(GroupState("", name, "", "", 0))
    one, packed = _prepare(function, calls, options)
    session, limits = one.session, Limits()
    with job_display.nothing_runs():
        if session.host.scheduler == "slurm":
            limits = _limits(session, one.job.resources.gpus)
            group = chunking.on_slurm(len(calls), wish, one.job.resources.time_s, limits)
        else:
            group = chunking.on_machine(len(calls), wish, _machine(session, one.job.resources))
    job = replace(one.job, group=group)
    _tell(one, group, wish, limits)
    made = GroupState(job.id, job.name, job.host.name, layout.job_dir(job.root, job.id), len(calls), on_error, labels)
    made.on_interrupt = options.on_interrupt
    made.given = submit.given_paths(session.root, one.payload)
    history.remember(made, one.config)
    caller.before_send(made)
    files = {**packed.files(), layout.LABELS: json.dumps(list(labels)).encode()}
    _send(replace(one, job=job), files, made, Gathering(session, job, made, limits))
    return JobGroup(made)


def _prepare(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], options: Options
) -> tuple[dispatch.Prepared, payload_items.Items]:
    """Where it runs is found as for one call; what is sent is the function with all items."""
    kept: list[payload_items.Items] = []

    def pack(target: tuple[int, int] | None) -> Payload:
        kept[:] = [payload_items.pack(function, calls, target)]
        return kept[0].payload

    prepared = dispatch.prepare_packed(function, pack, options)
    blobs = {digest: memoryview(bytes(view)) for digest, view in kept[0].payload.blobs.items()}
    return replace(prepared, payload=replace(prepared.payload, blobs=blobs)), kept[0]


def _limits(session: Session, gpus: int) -> Limits:
    """What the scheduler allows; asked once for a session."""
    told: list[str] | None = session.limits
    if told is None:
        scheduler = session.scheduler
        asked = [session.connection.run(argv, unset=scheduler.unset) for argv in scheduler.limits_commands()]
        told = session.limits = [_output(reply) for reply in asked]
    return session.scheduler.limits(told, gpus)


def _output(reply: Reply[Any]) -> str:
    """What a command printed; "" of one that is not there, or failed."""
    try:
        ran = reply.result(_TIMEOUT_S)
    except ClusterfnError:
        return ""
    return str(ran.out.decode("utf-8", "replace")) if ran.rc == 0 else ""


def _machine(session: Session, asked: Resources) -> chunking.Machine:
    facts, limits = session.connection.facts, session.host.limits
    local = session.host.scheduler == "local"
    memory = min(facts.memory_bytes, limits.memory_bytes or facts.memory_bytes)
    cards = session.cards_for(asked) if asked.gpus else 0
    by_memory = memory // asked.memory_bytes if asked.memory_bytes else None
    by_cards = min(cards, cards if limits.gpus is None else limits.gpus) // asked.gpus if asked.gpus else None
    cores = (limits.cores or facts.cpus) // asked.cores
    if local and (free := units.free_memory()) is not None:
        by_memory = min(memory, free) // (asked.memory_bytes or _USUAL_BYTES)
    return chunking.Machine(min(cores, limits.jobs or cores), by_memory, by_cards, local)


def _tell(one: dispatch.Prepared, group: Group, wish: Wish, limits: Limits) -> None:
    dispatch.tell(f"{one.job.id[:SHORT]} {one.where}: {_counted(group)}")
    gpus, slurm = one.job.resources.gpus, one.job.host.scheduler == "slurm"
    if wish.sequential_up_to is not None or (gpus and not slurm):
        place = "on GPUs of its own, waiting while others have them" if gpus else "in a process of its own"
        mode = f"PARALLEL processing, each item {place}"
        if group.at_once == 1 and group.count > 1:
            asked = f", as sequential_up_to={wish.sequential_up_to} asks"
            mode = f"SEQUENTIAL processing{' to avoid GPU deadlock' if gpus and not slurm else asked}"
        dispatch.tell(f"Using {mode} ({one.job.name}: {group.count})")
    if slurm and (load := chunking.load_on_controller(group, wish, one.job.resources.time_s, limits)):
        dispatch.tell(load)


def _counted(group: Group) -> str:
    return f"{group.count} item{'s' if group.count > 1 else ''}, {group.at_once} at a time"


def _send(one: dispatch.Prepared, files: Mapping[str, bytes], made: GroupState, gathering: Gathering) -> None:
    """Everything in one write: what the host lacks, the group's folder, the start of its elements."""
    session, job = one.session, one.job
    shipped = None
    with job_display.nothing_runs():
        if one.ready.made is not None:
            from clusterfn.calls import environment_upload  # takes time to import

            shipped = environment_upload.for_job(session, one.ready.made, cast(Any, made), dispatch.tell)
        before = [*submit.lay_out(session, one.ready), *submit.contents(session, one.payload)]
        before += shipped.before if shipped else ()
        sent = [*submit.job_files(job, one.payload), *(TreeFile(name, data) for name, data in files.items())]
    queued = job.host.scheduler == "slurm"
    folder = session.connection.put_tree(gathering.folder, sent, sync=queued, after=before)
    gathering.sending = Sending([*before, folder])
    made.on_transfer(gathering.sending)
    remember_going(made)
    gathering.start(range(1, gathering.spec.elements + 1), [*before, folder])
    if shipped and queued:
        shipped.tell(cast(Tracker, _Waits(gathering)), cast(Any, made))


class _Waits:
    """What `shipping` tells of an environment that is being made."""

    def __init__(self, gathering: Gathering) -> None:
        self.cannot_have = gathering.cannot_have
        self._gathering = gathering

    def waits_for(self, _: object, what: str) -> None:
        """How far it is; "" for nothing any more."""
        self._gathering.waits_for(what)


# groups that were sent before


def attach(session: Session, spec: Mapping[str, Any]) -> JobGroup[Any, Any]:
    """The group that was sent with this spec.json, from its beginning."""
    job = _job(session, spec)
    group = cast(Group, job.group)
    folder = layout.job_dir(job.root, job.id)
    (told,) = remote_files.read_each(session.connection, [posixpath.join(folder, layout.LABELS)])
    labels = json.loads(told) if told else ()
    made = GroupState(job.id, job.name, session.host.name, folder, group.count, labels=labels)
    made.sent_here = False
    gathering = Gathering(session, job, made, _limits(session, 0) if session.host.scheduler == "slurm" else Limits())
    left = array_tasks.left(session.connection, gathering.folder)
    gathering.attach(left)
    catch_up.until(lambda: gathering.has_heard(left))
    return JobGroup(made)


def again(group: GroupState, failed: Sequence[int]) -> JobGroup[Any, Any]:
    """A new group of these items of one that has ended, with the bytes that lie on the host."""
    old = group.gathering
    if old is None or not failed:
        return JobGroup(GroupState("", group.name, group.host, "", 0))
    names = (layout.SPEC, layout.SCRIPT, layout.PAYLOAD, layout.ITEMS, layout.ITEMS_INDEX)
    paths = [posixpath.join(old.folder, name) for name in names]
    spec, script, payload, data, index = remote_files.read_each(old.connection, paths)
    if spec is None or script is None or payload is None or data is None or index is None:
        raise PayloadError("the items are no longer on the host", host=group.host, job=group.id, hint="call map again")
    job = replace(old.job, id=secrets.token_hex(8), group=_shared_anew(old.spec, len(failed), len(group)))
    labels = [group.label(each) for each in failed]
    told = json.loads(spec.replace(group.id.encode(), job.id.encode()))
    files = {
        layout.SPEC: json.dumps({**told, "group": asdict(cast(Group, job.group))}).encode(),
        layout.SCRIPT: script.replace(group.id.encode(), job.id.encode()),
        layout.PAYLOAD: payload,
        layout.LABELS: json.dumps(labels).encode(),
        **_some(data, json.loads(index), failed),
    }
    if told["secrets"]:
        files[layout.SECRETS] = json.dumps(_secrets_again(told)).encode()
    made = GroupState(job.id, job.name, group.host, layout.job_dir(job.root, job.id), len(failed), labels=labels)
    made.on_interrupt, made.raises, made.given = group.on_interrupt, group.raises, group.given
    history.remember(made, config.load().path)
    counted = _counted(cast(Group, job.group))
    dispatch.tell(f"{job.id[:SHORT]} {job.name} on {group.host} (again, of {group.id[:SHORT]}): {counted}")
    _send_again(Gathering(old.session, job, made, old.limits), files)
    return JobGroup(made)


def _shared_anew(group: Group, count: int, of: int) -> Group:
    """How the items of a group are shared out of which only some are left."""
    others_returned = group.others_returned or count < of
    chunk = 1 if count <= _MANY else group.chunk
    elements = min(group.elements, -(-count // chunk))
    at_once = min(group.at_once, elements)
    return replace(
        group, count=count, chunk=chunk, elements=elements, at_once=at_once, per_element=None,
        others_returned=others_returned,
    )  # fmt: skip


def _secrets_again(spec: Mapping[str, Any]) -> dict[str, str]:
    """Their values are of this process: the host has forgotten them."""
    return dispatch.secret_values(Options(secrets=tuple(spec["secrets"])))


def _some(data: bytes, ends: Sequence[int], wanted: Sequence[int]) -> dict[str, bytes]:
    parts = [data[ends[index - 1] if index else 0 : ends[index]] for index in wanted]
    total, new = 0, []
    for part in parts:
        total += len(part)
        new.append(total)
    return {layout.ITEMS: b"".join(parts), layout.ITEMS_INDEX: json.dumps(new).encode()}


def _send_again(gathering: Gathering, files: Mapping[str, bytes]) -> None:
    session = gathering.session
    sent = [TreeFile(name, data, 0o700 if name == layout.SCRIPT else 0o600) for name, data in files.items()]
    queued = session.host.scheduler == "slurm"
    folder = session.connection.put_tree(gathering.folder, sent, sync=queued)
    gathering.sending = Sending([folder])
    gathering.group.on_transfer(gathering.sending)
    gathering.start(range(1, gathering.spec.elements + 1), [folder])
    remember_going(gathering.group)


def _job(session: Session, spec: Mapping[str, Any]) -> JobSpec:
    """The job as it was sent, for those who start more of it; but for the secrets, of which it has the names alone."""
    building = spec.get("building")
    if building:
        building = {**building, "owners": tuple(building.get("owners", ()))}
    return JobSpec(
        id=spec["id"], name=spec["name"], host=session.host, root=spec["root"], bridge=spec["bridge"],
        host_python=session.connection.facts.python, resources=Resources(**spec["resources"]),
        interpreter=Interpreter(spec["python"], tuple(spec["version"]), spec["activation"]),
        sys_path=tuple(spec["sys_path"]), env=spec["env"], cwd=spec["cwd"], outputs=tuple(spec["outputs"]),
        building=Building(**building) if building else None, group=Group(**spec["group"]),
        log_limit_bytes=spec["log_limit_bytes"], grace_s=spec["grace_s"], stall_s=spec.get("stall_s"),
        retries=spec.get("retries", 0), umask=spec.get("umask", 0o077), resume=spec.get("resume"),
        quiet_s=spec.get("quiet_s", layout.QUIET_S),
    )  # fmt: skip
