"""Sends the failed items of a group again: `retry_failed`.

A retry is a group of its own on the host, with the items that failed. On the client it continues the first one: the
items keep their indices and labels, and those that had returned keep their values.
"""

from __future__ import annotations

import json
import os
import posixpath
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import history, leaving, sending
from clusterfn.calls.demand import host_secrets, notification_of, secret_values
from clusterfn.calls.group_run import GroupRun
from clusterfn.config import config_file
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, Group, read_spec
from clusterfn.config.options import Options
from clusterfn.display import console
from clusterfn.errors import PayloadError
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import TreeFile
from clusterfn.packing import payload_items

_MANY, _READ_S = 500, 600.0


def retry_items(old: GroupRun, failed: Sequence[int], job_id: str = "", why: str = "again") -> GroupRun:
    """Send these items of a group again, with the bytes that are still on the host.

    Args:
        job_id: The id that they get; a new one by default.
        why: Why they are sent, in a word.

    Returns:
        The retry; in the state of its group only these items are unfinished.
    """
    group = old.group
    names = (layout.SPEC, layout.SCRIPT, layout.PAYLOAD, layout.ITEMS, layout.ITEMS_INDEX)
    paths = [posixpath.join(old.folder, name) for name in names]
    spec, script, payload, data, index = remote_files.read_each(old.host.connection, paths, timeout_s=_READ_S)
    if spec is None or script is None or payload is None or data is None or index is None:
        raise PayloadError("the items are no longer on the host", host=group.host, job=group.id, hint="call map again")
    job = old.job._replace(id=job_id or secrets.token_hex(8), group=_share_again(old.spec, len(failed)))
    with reading(group.host, SPEC_OF_JOB):
        fields, ends = read_spec(spec.replace(group.id.encode(), job.id.encode())), list(map(int, json.loads(index)))
    own = old.item_results.on_host
    # A part of a map on several hosts has the bytes of the other items after those of its own.
    order = [*own, *(index for index in range(len(group)) if index not in own)]
    number = {index: place for place, index in enumerate(order)}
    files = {
        layout.SPEC: json.dumps({**fields, "group": asdict(cast(Group, job.group)), "shared": job.shared}).encode(),
        layout.SCRIPT: script.replace(group.id.encode(), job.id.encode()),
        layout.PAYLOAD: payload,
        layout.LABELS: json.dumps([group.label(index) for index in failed]).encode(),
        layout.ARGUMENTS: json.dumps([group.arguments[index] for index in failed if group.arguments]).encode(),
        layout.RETRIED: json.dumps({"of": group.id, "items": list(failed)}).encode(),
        **payload_items.files_of(data, ends, [number[index] for index in failed]),
    }
    # The host has deleted the secrets of the first try, so this process sends its own.
    if fields["secrets"]:
        left = _names_of_secrets(old, fields["secrets"])
        # Those that this process no longer has are sent as they were.
        gone = {name: value for name, value in old.job.secrets.items() if name in left and name not in os.environ}
        values = {**gone, **secret_values(Options(secrets=tuple(left - gone.keys())))}
        files[layout.SECRETS] = json.dumps(values).encode()
    # The file of the first try is gone.
    notify = old.job.notify or notification_of(old.host.settings, Options())
    if notify:
        files[layout.NOTIFY] = json.dumps(dict(notify)).encode()
    retry = group.with_items_again(failed, job.id, layout.job_dir(job.root, job.id))
    history.remember(retry, config_file.load().path, job.results, fields["secrets"])
    how = cast(Group, job.group).in_words
    console.tell(f"{job.id[:SHORT]} {job.name} on {group.host} ({why}, of {group.id[:SHORT]}): {how}")
    run = GroupRun(old.host, job, retry, old.limits, old)
    sent = [TreeFile(name, data, 0o700 if name == layout.SCRIPT else 0o600) for name, data in files.items()]
    folder = sending.send_folder(run.queue, retry, sent, sending.Uploads([], {}))
    run.start(range(1, run.spec.elements + 1), [folder])
    leaving.remember_going(retry)
    return run


def _names_of_secrets(old: GroupRun, names: Sequence[str]) -> set[str]:
    """Return which variables of this process to send again.

    Raises:
        PayloadError: The host names one that neither this machine has sent with the group, nor `secrets:` means.
    """
    group, by_host = old.group, set(host_secrets(old.host.settings, names))
    unknown = set(names) - by_host - set(old.job.secrets) - history.secrets_of(group.id)
    if unknown:
        raise PayloadError(
            f"the host asks for the variable {in_one_line(min(unknown))!r:.80} of this process, which this machine "
            "did not send with the group; nothing was sent",
            host=group.host,
            job=group.id,
            hint="call map again",
        )
    return set(names) - (by_host - set(os.environ) - set(old.job.secrets))


def _share_again(group: Group, count: int) -> Group:
    chunk = 1 if count <= _MANY else group.chunk
    elements = min(group.elements, -(-count // chunk))
    at_once = min(group.at_once, elements)
    return replace(group, count=count, chunk=chunk, elements=elements, at_once=at_once, per_element=None)
