"""Jobs and groups of which no host is asked: they, or their items, end as the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from clusterfn import Job, JobGroup
from clusterfn.bridge.job_states import RUNNING
from clusterfn.calls.group_run import GroupRun
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.job import run_of
from clusterfn.calls.job_run import JobRun
from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.session_call import CallLocation, SessionCallJob
from clusterfn.calls.session_stream import CallStream
from clusterfn.calls.submission_line import Started
from clusterfn.config.job_spec import Group, JobSpec
from clusterfn.config.spec import Host, Interpreter, Resources
from clusterfn.errors import HostError
from clusterfn.hosts.host_state import HostState
from clusterfn.scheduler.base import SchedulerLimits
from tests.fakes.taken import run, source
from tests.fakes.transport import Far, agent


def job(digits: str = "7f3a", keeps: bool = False, kind: type[Job[Any]] = Job) -> tuple[JobRun, Job[Any]]:
    """What is told of it, and what a user has."""
    its_run = run(digits * 4, keeps=keeps)
    return its_run, kind(its_run, source(its_run))


def group(count: int) -> tuple[GroupState, JobGroup]:
    """What is told of it, and what a user has."""
    known = GroupState("7f3a000011112222", "train", "tensor01", "/root/jobs/7f3a", count)
    return known, JobGroup(known)


def end(known: GroupState, index: int, value: object) -> None:
    """Let an item return the value, or raise it."""
    outcome = ItemOutcome("RAISED", None, value) if isinstance(value, Exception) else ItemOutcome("RETURNED", value)
    known.end_item(index, outcome)


def ended(*values: object) -> JobGroup:
    known, made = group(len(values))
    for index, value in enumerate(values):
        end(known, index, value)
    return made


HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3")


def silent(request: dict[str, Any], body: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
    return ()


class Garbling(agent):
    """Says hello, and then what is no frame."""

    def answer(self, far: Far, header: dict[str, Any], body: bytes) -> None:
        super().answer(far, header, body)
        if header["do"] != "hello":
            far.write(b"Warning: your quota is nearly used up\n")


def followed(host: HostState, job_id: str = "7f3a" * 4) -> Job[Any]:
    """A job that runs on that host, as it is followed after it was sent."""
    tracker = Tracker(host, job_id, "train")
    job: Job[Any] = Job(tracker.run, tracker.source)
    tracker.follow()
    tracker.taken(Started("b0:1:2"))
    tracker.queued()
    run_of(job).set_state(RUNNING)
    return job


def in_a_group(host: HostState) -> JobGroup[Any, Any]:
    """A group of two items, one of which runs."""
    spec = JobSpec(
        id="90aa" * 4, name="train", host=host.settings, root=host.root, bridge=host.bridge.folder,
        host_python="python3", resources=Resources(cores=1), interpreter=Interpreter("python3", (3, 11)),
        group=Group(count=2, chunk=1, elements=2, at_once=2),
    )  # fmt: skip
    known = GroupState(spec.id, spec.name, host.settings.name, "/jobs/90aa", 2)
    run = GroupRun(host, spec, known, SchedulerLimits())
    run.follow(range(1, 3))
    run.elements.tasks[1].follow_now()
    run.elements.queued()
    return JobGroup(known, run)


def of_a_session(host: HostState) -> SessionCallJob[Any]:
    """A call of a session of that host, which nothing follows yet."""
    held = followed(host, "c0de" * 4)
    holder, stream = run_of(held), CallStream(host, held.folder, print)
    return SessionCallJob(held, CallLocation(holder.at, 1), "train", False, stream)


def in_a_session(host: HostState) -> SessionCallJob[Any]:
    """A call that a session of that host serves."""
    call = of_a_session(host)
    call.source.follow()
    return call


Handler = Callable[[dict[str, Any], bytes], Iterable[tuple[dict[str, Any], bytes]]]


def answered(outcome: bytes, *value: bytes) -> Handler:
    """A host on which this is what the job's outcome says, and the pieces of its value."""

    def handler(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        if "until" in request:
            yield {"content": True}, outcome
            yield from (({"file": 0, "size": 1}, piece) for piece in value)
            yield {"end": True, "ok": True}, b""

    return handler


def no_agent(words: str) -> HostError:
    error = HostError(words, host="lab8")
    error.kind = "missing"
    return error
