"""`clusterfn cancel` withdraws jobs that wait, and ends those that run.

`clusterfn alter` changes jobs that wait: their time, memory or priority.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import posixpath
from collections.abc import Sequence
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, PENDING, SHORT
from clusterfn.bridge.supervisor.text import in_one_line, last_lines
from clusterfn.calls import conclusion
from clusterfn.calls.at_once import at_once
from clusterfn.calls.attach import attach as find
from clusterfn.calls.attach import find_job
from clusterfn.calls.conclusion import WithdrawnJob
from clusterfn.calls.group import JobGroup
from clusterfn.calls.job import Job, withdraw
from clusterfn.cli import screen
from clusterfn.cli.output import described, facts_of, has_ended
from clusterfn.cli.parser import NOT_ALTERABLE
from clusterfn.cli.selection import ACTIVE, agreed, select
from clusterfn.config import config_file
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, known_fields, read_spec
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Resources
from clusterfn.config.units import exact_memory, exact_time
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import remote_files, spoken_wait
from clusterfn.hosts.host_state import HostState, open_session
from clusterfn.scheduler.base import Alteration

_WITHDRAWN = "was withdrawn before it started"
# Within this time, a machine without a scheduler has killed a job that does not end by itself. Of several jobs, each
# may wait for the others.
_END_S, _END_OF_SEVERAL_S = 20.0, 60.0
_TIMEOUT_S = 60.0


def cancel(args: argparse.Namespace) -> int:
    """Withdraw each job that has not started, or end a running one or a group; say which it was."""
    selection = select(args, "cancel", ACTIVE)
    if not agreed(selection, args, "cancel"):
        return 1
    withdrawn = _withdraw_many(selection.listed)
    most_s = _END_S if len(selection.jobs) == 1 else _END_OF_SEVERAL_S

    def end(job_id: str, host: str | None) -> dict[str, Any]:
        job = withdrawn.get(job_id)
        if job is None:
            return _cancel(find(job_id, host), most_s)
        if job.error is not None:
            raise job.error
        console.tell(in_one_line(f"{job.id} {job.name} on {host} {_WITHDRAWN}"))
        return {"id": job.id, "name": job.name, "host": host, "state": CANCELLED, "ended": True, "done": _WITHDRAWN}

    nothing = "nothing to cancel: no such job is waiting or running"
    return _report(selection.for_each(end, "ended", "cancelling jobs"), "ended", nothing, args.json)


def _report(outcomes: list[dict[str, Any]], done: str, nothing: str, as_json: bool) -> int:
    if as_json:
        print(screen.as_json(outcomes))
    elif not outcomes:
        console.tell(nothing)
    return 0 if all(each[done] for each in outcomes) else 1


def _withdraw_many(jobs: Sequence[tuple[str, str]]) -> dict[str, WithdrawnJob]:
    """Withdraw those of several jobs that have not started; return them by their ids. One job is left to `_cancel`."""
    if len(jobs) < 2:
        return {}
    ids: dict[str, list[str]] = {}
    for job_id, host in jobs:
        ids.setdefault(host, []).append(job_id)
    config = config_file.load()
    parts: list[conclusion.Withdrawal] = []
    for name in ids:
        with contextlib.suppress(ClusterfnError):
            # `_cancel` asks about each job again, and so reports a host that does not answer.
            parts += conclusion.withdrawals(open_session(config.resolve(name)[0]), ids[name])
    withdrawn: dict[str, WithdrawnJob] = {}
    for answer in at_once(parts, conclusion.Withdrawal.request, "withdrawing jobs that wait, fifty at a time"):
        with contextlib.suppress(ClusterfnError):
            # `_cancel` asks about each of these jobs again, and reports the error.
            withdrawn.update((job.id, job) for job in answer.result())
    return withdrawn


def _cancel(job: Job[Any] | JobGroup[Any, Any], most_s: float) -> dict[str, Any]:
    """End it, and return what was done; wait for its end for so long."""
    if isinstance(job, Job) and withdraw(job):
        done = _WITHDRAWN
    elif has_ended(job):
        done = f"had already ended: {job.status}"
    else:
        job.stop()

        def describe() -> str:
            return f"waiting for {job.id[:SHORT]} to end: it is {described(job)}"

        if isinstance(job, JobGroup):
            is_over = spoken_wait.wait(job.wait, describe, most_s)
        else:
            is_over = spoken_wait.wait_for([job], describe, most_s)
        if not is_over:
            done = f"was asked to stop, and has not ended yet: it is {described(job)}"
        else:
            done = f"{'was stopped' if job.state == CANCELLED else 'has ended meanwhile'}: {job.status}"
    console.tell(f"{job.id} {job.name} on {job.host} {in_one_line(done)}")
    return {**facts_of(job), "ended": job.done(), "done": in_one_line(done)}


def alter(args: argparse.Namespace) -> int:
    """Alter each job that waits; return 1 if one has begun, or cannot be altered."""
    change = _change_of(args)
    selection = select(args, "alter", [PENDING])
    outcomes = selection.for_each(lambda job_id, host: _alter(job_id, host, change), "altered", "altering jobs")
    nothing = "nothing to alter: no such job is waiting, and one that has begun keeps what it has"
    return _report(outcomes, "altered", nothing, args.json)


def _change_of(args: argparse.Namespace) -> Alteration:
    fixed = next((name for name in NOT_ALTERABLE if getattr(args, name.replace("-", "_")) is not None), None)
    if fixed is not None:
        hint = "cancel the job with clusterfn cancel, and send it again"
        raise ConfigError(f"alter cannot change {fixed} of a job that was sent", hint=hint)
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
    _alter_at_scheduler(session, spec, change)
    answer = session.bridge.supervise("alter", folder, bridge=spec["bridge"], stdin=json.dumps(facts).encode())
    outcome = answer.result(_TIMEOUT_S)
    if outcome.rc != 0:
        problem, lines = "the host could not alter the job", last_lines(outcome.err, 5)
        raise ClusterfnError(problem, host=session.host.name, job=spec["id"], evidence=lines)
    with reading(session.host.name, "its answer"):
        is_altered = json.loads(outcome.out)["altered"] is True
    if not is_altered:
        problem = f"{spec['name']} has begun, and keeps the time and the memory that it asked for"
        hint = f"clusterfn jobs {session.host.name} shows what still waits"
        raise ClusterfnError(problem, host=session.host.name, job=spec["id"], hint=hint)
    console.tell(f"{spec['id'][:SHORT]} {spec['name']} on {session.host.name} now has {_in_words(change)}")
    limits = {"time_s": request.time_s, "memory_bytes": request.memory_bytes}
    return {"id": spec["id"], "name": spec["name"], "host": session.host.name, "altered": True, **limits, **facts}


def _alter_at_scheduler(session: HostState, spec: dict[str, Any], change: Alteration) -> None:
    name = layout.job_name(spec["name"], spec["id"])
    element_s = (spec.get("group") or {}).get("element_s")
    # An element of a group runs several items, so its time limit changes by the same factor as that of an item.
    if element_s and change.time_s is not None and spec["resources"].get("time_s"):
        element_s *= change.time_s / spec["resources"]["time_s"]
        change = change._replace(time_s=element_s)
    command = session.scheduler.alter_command(name, change)
    if not command:
        return
    answer = session.connection.run(command, unset=session.scheduler.unset, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
    if answer.rc != 0:
        lines = (answer.err + answer.out).decode("utf-8", "replace").strip().splitlines()
        raise ClusterfnError(
            f"{session.scheduler.title} did not alter the job", host=session.host.name, job=spec["id"], evidence=lines,
            hint="a job that has begun keeps what it asked for; else ask for less, or cancel it and send it again",
        )  # fmt: skip


def _in_words(change: Alteration) -> str:
    parts = [f"a time limit of {exact_time(change.time_s)}"] if change.time_s is not None else []
    parts += [f"{exact_memory(change.memory_bytes)} of memory"] if change.memory_bytes is not None else []
    parts += [f"the priority {change.priority}"] if change.priority is not None else []
    return " and ".join(parts)
