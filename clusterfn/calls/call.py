"""The story of a call, from top to bottom.

    resources -> payload -> environment -> upload -> submit -> follow -> result

Nothing is sent before all of it is known to be right. The other modules do each step; this one has their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterfn.bridge.attributes import attribute
from clusterfn.calls import history, job_display, leaving, sending
from clusterfn.calls.demand import Demand, demand_of
from clusterfn.calls.job import Job, run_of, shown_to_end
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config import config_file
from clusterfn.display import labels
from clusterfn.packing import notes
from clusterfn.packing import payload as payloads
from clusterfn.public_api import check_arguments, check_values

if TYPE_CHECKING:
    from clusterfn.config.config_file import CallHost
    from clusterfn.config.job_spec import JobSpec
    from clusterfn.config.options import Options
    from clusterfn.hosts.environment_choice import ResolvedEnvironment
    from clusterfn.hosts.host_state import HostState
    from clusterfn.packing.payload import Payload

R = TypeVar("R")


def run_call(function: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> R:
    """Run the call on its host, show what it prints, and return its value or raise its exception."""
    value: R = run(prepare(function, args, kwargs, options), options.on_interrupt)
    return value


def run(prepared: Prepared, on_interrupt: str) -> Any:
    """Run a prepared call as `run_call` does; "detach" or "stop" at Ctrl-C."""
    return shown_to_end(send_call(prepared, live=True), prepared.where, on_interrupt)


def submit_call(
    function: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> Job[R]:
    """Send the call and return its Job. Large buffers are copied: afterwards the caller may change his arrays."""
    prepared = prepare(function, args, kwargs, options)
    job = send_call(prepared._replace(payload=prepared.payload.with_own_buffers()), in_turn=True)
    run_of(job).on_interrupt = options.on_interrupt
    return job


def describe_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> str:
    """Return as text what `submit_call` would send and run; only the questions that find the environment are sent."""
    prepared = prepare(function, args, kwargs, options)
    return sending.describe(prepared.host, prepared.job, prepared.payload)


class Prepared(NamedTuple):
    """A call of which everything is known, and nothing sent.

    Attributes:
        where: The sentence that says where it runs and what decided that.
        config: The file that defines the host, if any.
    """

    host: HostState
    job: JobSpec
    payload: Payload
    environment: ResolvedEnvironment
    where: str
    config: Path | None


def prepare(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Options,
    imports: Collection[str] = (),
) -> Prepared:
    """Find the host and the environment, pack the call, and check all of it.

    Its imports decide which environment is used, and what cannot be sent is found before an environment is solved. So
    it is packed first, for the Python that its environment is expected to have.

    Args:
        imports: Further modules that the function imports, which its code does not name.

    Raises:
        ConfigError, PayloadError, EnvironmentBuildError, Unsatisfiable, HostError: Before anything is sent.
    """
    # A call with wrong arguments fails here, and not on the host after minutes in a queue.
    check_arguments(function, args, kwargs)
    check_values(function, [args], kwargs)
    with job_display.nothing_runs():
        demand = demand_of(host_of(options, name_of(function), [args, kwargs]), name_of(function))
        python = demand.expected_python()
        with job_display.preparing(demand.job.name):
            payload = payloads.pack(function, args, kwargs, python, imports, demand.place)
        environment = demand.find_environment(payload)
        if environment.python != python:
            # Code goes to another Python as text.
            with job_display.preparing(demand.job.name):
                payload = payloads.pack(function, args, kwargs, environment.python, imports, demand.place)
        prepared = complete(demand, payload, environment, function)
    # A command without values is labelled by its own words.
    label = labels.labels(labels.rows_to_show(function, [args], kwargs))[0]
    arguments = label or labels.cut(str(attribute(function, "command_line", "")))
    return prepared._replace(job=prepared.job._replace(arguments=arguments))


def host_of(options: Options, name: str, given: Sequence[Any] = ()) -> CallHost:
    """Return the host of a call; raise as `hosts_of`."""
    return hosts_of(options, name, given)[0][0]


def hosts_of(options: Options, name: str, given: Sequence[Any], every: bool = False) -> list[tuple[CallHost, bool]]:
    """Return the host of a call, or of a map, with whether it can start soon; of several as `host_choice.choose`."""
    among = config_file.hosts_of_call(options)
    if len(among) == 1:
        return [(among[0], True)]
    # It is imported late, because most calls name one host.
    from clusterfn.calls import host_choice

    return host_choice.choose(among, name, given, every)


def prepare_held(chosen: CallHost, imports: Collection[str] = ()) -> Prepared:
    """Prepare a job that holds what it asks for, and calls nothing: a session, or a kernel; raise as `prepare`.

    Args:
        imports: The user's own modules that it needs.
    """
    with job_display.nothing_runs():
        demand = demand_of(chosen, "held")
        payload = payloads.pack_modules(imports)
        return complete(demand, payload, demand.find_environment(payload))


def name_of(function: Callable[..., Any]) -> str:
    """Return what a job of this function is called after."""
    return str(attribute(function, "__name__", "function"))


def complete(
    demand: Demand, payload: Payload, environment: ResolvedEnvironment, function: Callable[..., Any] | None = None
) -> Prepared:
    """Put together what is known of a call, and say what will be different there."""
    job = demand.job._replace(
        interpreter=environment.interpreter,
        building=environment.made.building if environment.made else None,
        after=payload.after,
        has_value=not attribute(function, "is_without_value", False),
    )
    job = job._replace(sys_path=sending.module_folders(job, payload))
    notes.tell(payload.notes, job, sending.is_in_place(job.host, job.interpreter))
    return Prepared(demand.host, job, payload, environment, demand.where, demand.config)


def send_call(prepared: Prepared, live: bool = False, in_turn: bool = False) -> Job[Any]:
    """Send a prepared call, start it, and follow it; return its Job.

    Args:
        live: Whether what it prints is followed.
        in_turn: Whether to follow it only once it is one of the oldest jobs of its host, or begins.
    """
    host, spec, payload = prepared.host, prepared.job, prepared.payload
    tracker = Tracker(host, spec.id, spec.name, live, results=spec.results)
    run = tracker.run
    job: Job[Any] = Job(run, tracker.source)
    run.at.keeps = spec.keep_value
    # The program may change its working directory before the job ends, so the folder is noted now.
    run.outputs = tuple((pattern, Path.cwd()) for pattern in spec.outputs)
    run.asked = spec.resources
    run.has_value = spec.has_value
    run.queue.inputs = payload.inputs
    run.given = sending.given_paths(host.root, payload)
    history.remember(run, prepared.config, spec.results, spec.secrets)
    needs = sending.send_needs(host, payload, prepared.environment)
    run.submitted_at = time.monotonic()
    sending.submit_job(spec, payload, needs, tracker)
    tracker.follow(in_turn)
    leaving.remember_going(run)
    return job
