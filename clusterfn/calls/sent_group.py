"""Attaches to a group that was sent, from its beginning."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.calls import remote_state
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_run import GroupRun
from clusterfn.calls.group_state import GroupState
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, Group, JobSpec, read_spec
from clusterfn.config.spec import Host, ResultPolicy
from clusterfn.display import console
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import Reply
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import SchedulerLimits

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import HostState

_TIMEOUT_S = 60.0


def limits_of(host_state: HostState, gpus: int, host: Host) -> SchedulerLimits:
    """Ask what the scheduler allows, once for each host; `host` has the options of the call."""
    if host_state.limits is None:
        scheduler = host_state.scheduler
        replies = [host_state.connection.run(argv, unset=scheduler.unset) for argv in scheduler.limits(gpus).commands]
        host_state.limits = [_output(reply) for reply in replies]
    return scheduler_for(host).limits(gpus).read(host_state.limits)


def _output(reply: Reply[Any]) -> str:
    """Return what a command printed; "" if it failed or does not exist."""
    try:
        ran = reply.result(_TIMEOUT_S)
    except ClusterfnError:
        return ""
    return str(ran.out.decode("utf-8", "replace")) if ran.rc == 0 else ""


def attach(host: HostState, spec: Mapping[str, Any], results: ResultPolicy) -> JobGroup[Any, Any]:
    """Attach to the group that was sent with this spec.json; `results` is what is accepted of its values."""
    run = _attached(host, spec, results)
    return JobGroup(run.group, run)


def _attached(host: HostState, spec: Mapping[str, Any], results: ResultPolicy) -> GroupRun:
    with reading(host.settings.name, SPEC_OF_JOB):
        job = JobSpec.from_json(spec, host.settings, host.connection.facts.python)._replace(results=results)
    count = cast(Group, job.group).count
    folder = layout.job_dir(job.root, job.id)
    paths = [posixpath.join(folder, name) for name in (layout.LABELS, layout.ARGUMENTS, layout.RETRIED)]
    label_data, arguments, of = remote_files.read_each(host.connection, paths)
    with reading(host.settings.name, f"the items of {job.id[:SHORT]}"):
        earlier = dict(json.loads(of)) if of else {"of": "", "items": []}
        tried, retried = str(earlier["of"]), list(map(int, earlier["items"]))
        labels = list(map(str, json.loads(label_data))) if label_data else []
        shown = [dict(names) for names in json.loads(arguments)] if arguments else []
    before = _tried_before(host, job, tried) if tried else None
    if before is not None:
        group = before.group.with_items_again(retried, job.id, folder)
    else:
        group = GroupState(job.id, job.name, host.settings.name, folder, count)
        group.labels, group.arguments = labels, shown
    group.sent_here, group.asked, group.has_value = False, job.resources, job.has_value
    limits = limits_of(host, 0, job.host) if host.scheduler.has_nodes else SchedulerLimits()
    run = GroupRun(host, job, group, limits, before)
    left = remote_state.read_group_state(host.connection, run.folder)
    run.attach(left)
    remote_state.wait_until_caught_up(lambda: run.is_caught_up(left))
    return run


def _tried_before(host: HostState, job: JobSpec, of: str) -> GroupRun | None:
    """Attach to the try before this one; None if the host has deleted it: then the items are numbered from 0."""
    (spec,) = remote_files.read_each(host.connection, [posixpath.join(layout.job_dir(job.root, of), layout.SPEC)])
    if spec is None:
        console.tell(f"the host no longer has {of[:SHORT]}, of which {job.id[:SHORT]} is a retry: its values are gone")
        return None
    with reading(host.settings.name, SPEC_OF_JOB):
        before = read_spec(spec)
    return _attached(host, before, job.results)
