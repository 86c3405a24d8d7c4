"""`clusterfn alter` changes jobs that wait: their time, memory or priority."""

from __future__ import annotations

import argparse
import json
import posixpath
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SHORT
from clusterfn.calls import console
from clusterfn.calls.attach import find_job
from clusterfn.cli import screen
from clusterfn.cli.parser import NOT_ALTERABLE
from clusterfn.cli.selection import select
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, known_fields, read_spec
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Resources
from clusterfn.config.units import exact_memory, exact_time
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import remote_files
from clusterfn.hosts.host_state import HostState
from clusterfn.scheduler.base import Alteration

_TIMEOUT_S = 60.0


def alter(args: argparse.Namespace) -> int:
    """Alter each job that waits; return 1 if one has begun, or cannot be altered."""
    change = _change_of(args)
    selection = select(args, "alter", [PENDING])
    outcomes = selection.for_each(lambda job_id, host: _alter(job_id, host, change), "altered", "altering jobs")
    if args.json:
        print(screen.as_json(outcomes))
    elif not outcomes:
        console.tell("nothing to alter: no such job is waiting, and one that has begun keeps what it has")
    return 0 if all(each["altered"] for each in outcomes) else 1


def _change_of(args: argparse.Namespace) -> Alteration:
    fixed = next((name for name in NOT_ALTERABLE if getattr(args, name.replace("-", "_")) is not None), None)
    if fixed is not None:
        raise ConfigError(
            f"alter cannot change {fixed} of a job that was sent",
            hint="cancel the job with clusterfn cancel, and send it again",
        )
    names = ("time", "memory", "priority")
    options = parse_options({name: getattr(args, name) for name in names if getattr(args, name) is not None})
    change = Alteration(options.time_s, options.memory_bytes, options.priority if args.priority is not None else None)
    if change == Alteration():
        raise ConfigError("alter changes nothing", hint="give --time, --memory or --priority")
    return change


def _alter(job_id: str, host: str | None, change: Alteration) -> dict[str, Any]:
    """Have the scheduler, and then the job's own files, changed; return what the job asks for now.

    Raises:
        ClusterfnError: It has begun, or its scheduler rejects the change.
    """
    session, folder = find_job(job_id, host)
    (data,) = remote_files.read_each(session.connection, [posixpath.join(folder, layout.SPEC)])
    with reading(session.host.name, SPEC_OF_JOB):
        spec = read_spec(data or b"")
        before = Resources(**known_fields(Resources, spec["resources"]))
    facts = {name: value for name, value in change._asdict().items() if value is not None}
    request = before._replace(**{name: value for name, value in facts.items() if name != "priority"})
    # Reject what the host can never give before anything is changed.
    session.capacity.enough(request)
    _alter_at_scheduler(session, spec, request, change)
    answer = session.bridge.supervise("alter", folder, bridge=spec["bridge"], stdin=json.dumps(facts).encode())
    outcome = answer.result(_TIMEOUT_S)
    if outcome.rc != 0:
        lines = outcome.err.decode("utf-8", "replace").splitlines()[-5:]
        raise ClusterfnError("the host could not alter the job", host=session.host.name, job=spec["id"], evidence=lines)
    with reading(session.host.name, "its answer"):
        is_altered = json.loads(outcome.out)["altered"] is True
    if not is_altered:
        raise _has_begun(session, spec)
    console.tell(f"{spec['id'][:SHORT]} {spec['name']} on {session.host.name} now has {_in_words(change)}")
    limits = {"time_s": request.time_s, "memory_bytes": request.memory_bytes}
    return {"id": spec["id"], "name": spec["name"], "host": session.host.name, "altered": True, **limits, **facts}


def _alter_at_scheduler(session: HostState, spec: dict[str, Any], request: Resources, change: Alteration) -> None:
    name = layout.job_name(spec["name"], spec["id"])
    element_s = (spec.get("group") or {}).get("element_s")
    # An element of a group runs several items, so its time limit changes by the same factor as that of an item.
    if element_s and change.time_s is not None and spec["resources"].get("time_s"):
        element_s *= change.time_s / spec["resources"]["time_s"]
        request, change = request._replace(time_s=element_s), change._replace(time_s=element_s)
    command = session.scheduler.alter_command(name, request, change)
    if not command:
        return
    answer = session.connection.run(command, unset=session.scheduler.unset, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
    if answer.rc != 0:
        lines = (answer.err + answer.out).decode("utf-8", "replace").strip().splitlines()
        raise ClusterfnError(
            f"{session.scheduler.title} did not alter the job", host=session.host.name, job=spec["id"], evidence=lines,
            hint="a job that has begun keeps what it asked for; else ask for less, or cancel it and send it again",
        )  # fmt: skip


def _has_begun(session: HostState, spec: dict[str, Any]) -> ClusterfnError:
    return ClusterfnError(
        f"{spec['name']} has begun, and keeps the time and the memory that it asked for",
        host=session.host.name, job=spec["id"], hint=f"clusterfn jobs {session.host.name} shows what still waits",
    )  # fmt: skip


def _in_words(change: Alteration) -> str:
    parts = [f"a time limit of {exact_time(change.time_s)}"] if change.time_s is not None else []
    parts += [f"{exact_memory(change.memory_bytes)} of memory"] if change.memory_bytes is not None else []
    parts += [f"the priority {change.priority}"] if change.priority is not None else []
    return " and ".join(parts)
