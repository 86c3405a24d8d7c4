"""Attaches to a group that was sent, from its beginning."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import operator
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.calls import history, remote_state
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_run import GroupRun
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.shared_group import Parts, PartState, SharedGroup, is_there, notes
from clusterfn.config import config_file
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import MOST_ITEMS, SPEC_OF_JOB, Group, JobSpec, is_id, read_spec
from clusterfn.config.spec import Host, ResultPolicy
from clusterfn.display import console
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.host_state import open_host
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import SchedulerLimits

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import HostState

_TIMEOUT_S = 60.0
_ABOUT = (layout.LABELS, layout.ARGUMENTS, layout.RETRIED)


def limits_of(host_state: HostState, gpus: int, host: Host) -> SchedulerLimits:
    """Ask what the scheduler allows, once for each host that answers; `host` has the options of the call."""
    answers = host_state.limits
    if answers is None:
        scheduler = host_state.scheduler
        replies = [host_state.connection.run(argv, unset=scheduler.unset) for argv in scheduler.limits(gpus).commands]
        answers = [_output(reply) for reply in replies]
        # If the first command fails, the scheduler is away for a moment. The last fails at sites without accounting.
        host_state.limits = answers if answers[:1] != [""] else None
    return scheduler_for(host).limits(gpus).read(answers)


def _output(reply: Reply[Any]) -> str:
    """Return what a command printed; "" if it failed or does not exist."""
    try:
        ran = reply.result(_TIMEOUT_S)
    except ClusterfnError:
        return ""
    return str(ran.out.decode("utf-8", "replace")) if ran.rc == 0 else ""


def attach(host: HostState, spec: Mapping[str, Any], results: ResultPolicy) -> JobGroup[Any, Any]:
    """Attach to the group that was sent with this spec.json; `results` is what is accepted of its values."""
    if spec.get("shared"):
        return _attach_shared(host, spec, results)
    run = _attached(host, spec, results)
    return JobGroup(run.group, run)


def _about(host: HostState, job_id: str) -> tuple[list[str], list[dict[str, Any]], str, list[int]]:
    """Return the labels and arguments of a group's items, and the group that it continues with these of its items."""
    paths = [posixpath.join(layout.job_dir(host.root, job_id), name) for name in _ABOUT]
    labels, arguments, retried = remote_files.read_each(host.connection, paths)
    with reading(host.settings.name, f"the items of {job_id[:SHORT]}"):
        earlier = dict(json.loads(retried or b'{"of": "", "items": []}'))
        shown = list(map(dict, json.loads(arguments or b"[]")))
        return list(map(str, json.loads(labels or b"[]"))), shown, str(earlier["of"]), list(map(int, earlier["items"]))


def _attached(host: HostState, spec: Mapping[str, Any], results: ResultPolicy) -> GroupRun:
    with reading(host.settings.name, SPEC_OF_JOB):
        job = JobSpec.from_json(spec, host.settings, host.connection.facts.python)._replace(results=results)
    folder = layout.job_dir(job.root, job.id)
    labels, arguments, tried, retried = _about(host, job.id)
    before = _tried_before(host, job, tried) if tried else None
    if before is not None:
        group = before.group.with_items_again(retried, job.id, folder)
    else:
        group = GroupState(job.id, job.name, host.settings.name, folder, cast(Group, job.group).count)
        group.labels, group.arguments = labels, arguments
    group.sent_here, group.asked, group.has_value = False, job.resources, job.has_value
    run = GroupRun(host, job, group, _limits(host, job), before)
    _follow([run])
    return run


def _limits(host: HostState, job: JobSpec) -> SchedulerLimits:
    return limits_of(host, 0, job.host) if host.scheduler.has_nodes else SchedulerLimits()


def _follow(runs: Sequence[GroupRun]) -> None:
    """Follow what other processes have sent, unless it is; what it is doing now is known when this returns."""
    for run in [run for run in runs if not run.elements.tasks]:
        left = remote_state.read_group_state(run.host.connection, run.folder)
        run.attach(left)
        remote_state.wait_until_caught_up(functools.partial(run.is_caught_up, left))


def _tried_before(host: HostState, job: JobSpec, of: str) -> GroupRun | None:
    """Attach to the try before this one; None if the host has deleted it: then the items are numbered from 0."""
    (spec,) = remote_files.read_each(host.connection, [posixpath.join(layout.job_dir(job.root, of), layout.SPEC)])
    if spec is None:
        console.tell(f"the host no longer has {of[:SHORT]}, of which {job.id[:SHORT]} is a retry: its values are gone")
        return None
    with reading(host.settings.name, SPEC_OF_JOB):
        before = read_spec(spec)
    return _attached(host, before, job.results)


def _attach_shared(host: HostState, spec: Mapping[str, Any], results: ResultPolicy) -> JobGroup[Any, Any]:
    """Attach to a group that several hosts share, by what one of them has of it."""
    with reading(host.settings.name, SPEC_OF_JOB):
        hosts, ids, counts = zip(*((str(name), str(job_id), int(count)) for name, job_id, count in spec["shared"]))
        if min(counts) < 0 or sum(counts) > MOST_ITEMS or not all(map(is_id, ids)):
            raise ValueError("its parts")
    whole = GroupState(ids[0], spec["name"], ", ".join(hosts), layout.job_dir(host.root, ids[0]), sum(counts))
    whole.labels, whole.arguments, *_ = _about(host, dict(zip(hosts, ids)).get(host.settings.name, ids[0]))
    whole.sent_here, whole.has_value = False, bool(spec.get("has_value", True))
    shared, known = Parts(whole), config_file.load()
    sent_with = dict(pair for entry in history.entries(ids[0]) for pair in history.hosts_sent_with(entry).items())
    for host_name, job_id, count, end in zip(hosts, ids, counts, itertools.accumulate(counts)):
        part = PartState(shared, job_id, host_name, "", range(end - count, end))
        try:
            settings = sent_with.get(host_name) or known.resolve(host_name)[0]
            there = host if host_name == host.settings.name else open_host(settings)
            _add_part(there, part, None, results)
        except ClusterfnError as error:
            shared.missing.append(error)
            shared.lose(part.own, error)

    def follow_all() -> None:
        _add_later_parts(shared, results)
        _follow(list(shared.runs.values()))

    follow_all()
    return SharedGroup(shared, follow_all)


def _add_part(host: HostState, part: PartState, first: GroupRun | None, results: ResultPolicy) -> GroupRun:
    """Add a part to a group that several hosts share, which is not followed yet."""
    part.folder = layout.job_dir(host.root, part.id)
    (spec,) = remote_files.read_each(host.connection, [posixpath.join(part.folder, layout.SPEC)])
    with reading(host.settings.name, SPEC_OF_JOB):
        job = JobSpec.from_json(read_spec(spec or b""), host.settings, host.connection.facts.python)
    part.parts.whole.asked = part.asked = job.resources
    run = GroupRun(host, job._replace(results=results), part, _limits(host, job), first)
    part.parts.add(run)
    return run


def _add_later_parts(shared: Parts, results: ResultPolicy) -> None:
    """Add the parts that hosts have got since the beginning, in that order, but for those that are known."""
    noted: list[tuple[str, GroupRun]] = []
    for first in filter(is_there, shared.first.values()):
        with contextlib.suppress(ClusterfnError):
            noted += [(name, first) for name in notes(first)]
    known = {part.id for part in shared.runs}
    for name, first in sorted(noted, key=operator.itemgetter(0)):
        job_id = name.partition("-")[2]
        if is_id(job_id) and job_id not in known:
            *_, of, own = _about(first.host, job_id)
            # It may be on its way.
            if of:
                part = PartState(shared, job_id, first.group.host, "", sorted(map(shared.whole.at, own)))
                _add_part(first.host, part, first, results)
