"""What is done with a group that was sent: attach to it, and retry items of it.

A retry is a group of its own on the host, with the items that failed. On the client it continues the first one: the
items keep their indices and labels, and those that had returned keep their values.
"""

from __future__ import annotations

import functools
import json
import os
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import history, leaving, remote_state, sending
from clusterfn.calls.demand import host_secrets, notification_of, secret_values
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.group_tracker import GroupTracker, Retried
from clusterfn.config import config_file
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, Group, JobSpec, read_spec
from clusterfn.config.options import Options
from clusterfn.config.spec import Host, ResultPolicy
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, PayloadError
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import Reply, TreeFile
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import SchedulerLimits

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import HostState

_TIMEOUT_S = 60.0
_MANY = 500


def track(
    host: HostState, job: JobSpec, group: GroupState, limits: SchedulerLimits, retried: Retried | None = None
) -> GroupTracker:
    """Make what follows a group, and let its state send failed items again."""
    tracker = GroupTracker(host, job, group, limits, retried)
    group.send_again = functools.partial(retry_items, tracker)
    return tracker


def limits_of(host_state: HostState, gpus: int, host: Host) -> SchedulerLimits:
    """Ask what the scheduler allows, once for each host; `host` has the options of the call."""
    answers: list[str] | None = host_state.limits
    if answers is None:
        scheduler = host_state.scheduler
        replies = [host_state.connection.run(argv, unset=scheduler.unset) for argv in scheduler.limits(gpus).commands]
        answers = host_state.limits = [_output(reply) for reply in replies]
    return scheduler_for(host).limits(gpus).read(answers)


def _output(reply: Reply[Any]) -> str:
    """Return what a command printed; "" if it failed or does not exist."""
    try:
        ran = reply.result(_TIMEOUT_S)
    except ClusterfnError:
        return ""
    return str(ran.out.decode("utf-8", "replace")) if ran.rc == 0 else ""


def in_words(group: Group) -> str:
    """Say how many items a group has, and how many of them run side by side."""
    return f"{group.count} item{'s' if group.count > 1 else ''}, {group.at_once} at a time"


def attach(host: HostState, spec: Mapping[str, Any], results: ResultPolicy) -> JobGroup[Any, Any]:
    """Attach to the group that was sent with this spec.json, from its beginning.

    Args:
        results: What is accepted of its values.
    """
    return JobGroup(_attached(host, spec, results))


def _attached(host: HostState, spec: Mapping[str, Any], results: ResultPolicy) -> GroupState:
    with reading(host.settings.name, SPEC_OF_JOB):
        job = JobSpec.from_json(spec, host.settings, host.connection.facts.python)._replace(results=results)
    count = cast(Group, job.group).count
    folder = layout.job_dir(job.root, job.id)
    paths = [posixpath.join(folder, name) for name in (layout.LABELS, layout.ARGUMENTS, layout.RETRIED)]
    label_data, arguments, of = remote_files.read_each(host.connection, paths)
    with reading(host.settings.name, f"the items of {job.id[:SHORT]}"):
        earlier = dict(json.loads(of)) if of else None
        labels = list(map(str, json.loads(label_data))) if label_data else []
        shown = [dict(each) for each in json.loads(arguments)] if arguments else []
    retried = _retried(host, job, earlier) if earlier is not None else None
    if retried is None:
        group = GroupState(job.id, job.name, host.settings.name, folder, count, labels=labels)
        group.arguments = shown
    else:
        group = retried.group.with_items_again(retried.numbers, job.id, folder)
    group.sent_here, group.asked, group.has_value = False, job.resources, job.has_value
    limits = limits_of(host, 0, job.host) if host.scheduler.has_nodes else SchedulerLimits()
    tracker = track(host, job, group, limits, retried)
    left = remote_state.read_group_state(host.connection, tracker.folder)
    tracker.attach(left)
    remote_state.wait_until_caught_up(lambda: tracker.is_caught_up(left))
    return group


def _retried(host: HostState, job: JobSpec, earlier: Mapping[str, Any]) -> Retried | None:
    """Attach to the try before this one; None if the host has deleted it: then the items are numbered from 0."""
    with reading(host.settings.name, f"the items of {job.id[:SHORT]}"):
        of, items = str(earlier["of"]), list(map(int, earlier["items"]))
    folder = layout.job_dir(job.root, of)
    (spec,) = remote_files.read_each(host.connection, [posixpath.join(folder, layout.SPEC)])
    if spec is None:
        console.tell(f"the host no longer has {of[:SHORT]}, of which {job.id[:SHORT]} is a retry: its values are gone")
        return None
    with reading(host.settings.name, SPEC_OF_JOB):
        before = read_spec(spec)
    return Retried(items, _attached(host, before, job.results))


def retry_items(old: GroupTracker, failed: Sequence[int]) -> GroupState:
    """Send these items of a group that has ended again, with the bytes that are still on the host.

    Returns:
        The state of all items of the group, in which only these are unfinished.
    """
    group = old.group
    names = (layout.SPEC, layout.SCRIPT, layout.PAYLOAD, layout.ITEMS, layout.ITEMS_INDEX)
    paths = [posixpath.join(old.folder, name) for name in names]
    spec, script, payload, data, index = remote_files.read_each(old.connection, paths)
    if spec is None or script is None or payload is None or data is None or index is None:
        raise PayloadError("the items are no longer on the host", host=group.host, job=group.id, hint="call map again")
    job = old.job._replace(id=secrets.token_hex(8), group=_share_again(old.spec, len(failed)))
    with reading(group.host, SPEC_OF_JOB):
        fields, ends = read_spec(spec.replace(group.id.encode(), job.id.encode())), list(map(int, json.loads(index)))
    files = {
        layout.SPEC: json.dumps({**fields, "group": asdict(cast(Group, job.group))}).encode(),
        layout.SCRIPT: script.replace(group.id.encode(), job.id.encode()),
        layout.PAYLOAD: payload,
        layout.LABELS: json.dumps([group.label(each) for each in failed]).encode(),
        layout.ARGUMENTS: json.dumps([group.arguments[each] for each in failed if group.arguments]).encode(),
        layout.RETRIED: json.dumps({"of": group.id, "items": list(failed)}).encode(),
        **_select(data, ends, old.item_results.numbers_on_host(failed)),
    }
    # The host has deleted the secrets of the first try, so this process sends its own.
    if fields["secrets"]:
        left = _names_of_secrets(old, fields["secrets"])
        files[layout.SECRETS] = json.dumps(secret_values(Options(secrets=tuple(left)))).encode()
    # The file of the first try is gone.
    notify = old.job.notify or notification_of(old.host.settings, Options())
    if notify:
        files[layout.NOTIFY] = json.dumps(dict(notify)).encode()
    retry = group.with_items_again(failed, job.id, layout.job_dir(job.root, job.id))
    history.remember(retry, config_file.load().path, job.results, fields["secrets"])
    counted = in_words(cast(Group, job.group))
    console.tell(f"{job.id[:SHORT]} {job.name} on {group.host} (again, of {group.id[:SHORT]}): {counted}")
    tracker = track(old.host, job, retry, old.limits, Retried(failed, group))
    sent = [TreeFile(name, data, 0o700 if name == layout.SCRIPT else 0o600) for name, data in files.items()]
    folder = sending.send_folder(old.host, tracker, retry, sent, sending.Uploads([], {}))
    tracker.start(range(1, tracker.spec.elements + 1), [folder])
    leaving.remember_going(retry)
    return retry


def _names_of_secrets(old: GroupTracker, names: Sequence[str]) -> set[str]:
    """Return which variables of this process to send again.

    Raises:
        PayloadError: The host names one that neither this machine has sent with the group, nor `secrets:` means.
    """
    group, by_host = old.group, set(host_secrets(old.host.settings, names))
    unknown = set(names) - by_host - set(old.job.secrets) - history.secrets_of(group.id)
    if unknown:
        raise PayloadError(
            f"the host asks for the variable {in_one_line(min(unknown))!r:.80} of this process, which this machine "
            "did not send with the group; nothing was sent", host=group.host, job=group.id, hint="call map again",
        )  # fmt: skip
    return set(names) - (by_host - set(os.environ))


def _share_again(group: Group, count: int) -> Group:
    """Share out those items of a group that are left."""
    chunk = 1 if count <= _MANY else group.chunk
    elements = min(group.elements, -(-count // chunk))
    at_once = min(group.at_once, elements)
    return replace(group, count=count, chunk=chunk, elements=elements, at_once=at_once, per_element=None)


def _select(data: bytes, ends: Sequence[int], indices: Sequence[int]) -> dict[str, bytes]:
    parts = [data[ends[index - 1] if index else 0 : ends[index]] for index in indices]
    total, new = 0, []
    for part in parts:
        total += len(part)
        new.append(total)
    return {layout.ITEMS: b"".join(parts), layout.ITEMS_INDEX: json.dumps(new).encode()}
