"""The story of a call, from top to bottom.

    resources -> environment -> payload -> upload -> submit -> follow -> result

Nothing is sent before all of it is known to be right. The other modules do each step; this one has their order.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import secrets
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.attributes import attribute
from clusterfn.calls import checkpoint, history, job_display, leaving, sending
from clusterfn.calls.job import Job, entry_of
from clusterfn.calls.job_entry import JobEntry
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config import config_file
from clusterfn.config.environment_kinds import is_set_by_clusterfn
from clusterfn.config.job_spec import JobSpec, options_passed_on
from clusterfn.config.option_checks import may_be_in_a_name
from clusterfn.config.spec import Host, Resources
from clusterfn.display import console, labels
from clusterfn.errors import ConfigError
from clusterfn.hosts.environment_choice import EnvironmentRequest, ResolvedEnvironment
from clusterfn.hosts.host_state import CALLER, HostState, open_host
from clusterfn.packing import notes
from clusterfn.packing import payload as payloads
from clusterfn.packing.dependencies import Place
from clusterfn.public_api import check_arguments, check_values
from clusterfn.scheduler import scheduler_for

if TYPE_CHECKING:
    from clusterfn.calls.environment_upload import EnvironmentUpload
    from clusterfn.calls.group_state import GroupState
    from clusterfn.config.options import Options
    from clusterfn.scheduler.base import Scheduler

R = TypeVar("R")
Pack = Callable[["tuple[int, int] | None", Place], payloads.Payload]
# Names of variables whose values are secrets.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH", re.IGNORECASE)


def run_call(
    function: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options,
    imports: Collection[str] = (),
) -> R:  # fmt: skip
    """Run the call on its host, show what it prints, and return its value or raise its exception.

    Args:
        imports: Further modules that the function imports, which its code does not name.
    """
    prepared = prepare(function, args, kwargs, options, imports)
    job, _ = send_call(prepared, live=True)
    value: R = job_display.result(job, prepared.where, options.on_interrupt)
    return value


def submit_call(
    function: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> Job[R]:
    """Send the call and return its Job. Large buffers are copied: afterwards the caller may change his arrays."""
    prepared = prepare(function, args, kwargs, options)
    job, _ = send_call(prepared._replace(payload=prepared.payload.with_own_buffers()), in_turn=True)
    entry_of(job).on_interrupt = options.on_interrupt
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
    payload: payloads.Payload
    ready: ResolvedEnvironment
    where: str
    config: Path | None


def prepare(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options,
    imports: Collection[str] = (),
) -> Prepared:  # fmt: skip
    """Find the host and the environment, pack the call, and check all of it; raises as `prepare_packed`."""
    # A call with wrong arguments fails here, and not on the host after minutes in a queue.
    check_arguments(function, args, kwargs)
    check_values(function, [args], kwargs)
    prepared = prepare_packed(
        function, lambda target, place: payloads.pack(function, args, kwargs, target, imports, place), options
    )
    # A command without values is labelled by its own words.
    label = labels.labels(labels.rows_to_show(function, [args], kwargs))[0]
    arguments = label or labels.cut(str(attribute(function, "command_line", "")))
    return prepared._replace(job=prepared.job._replace(arguments=arguments))


def prepare_held(options: Options, imports: Collection[str] = ()) -> Prepared:
    """Prepare a job that holds what it asks for, and calls nothing: a session, or a kernel. The call stands for it.

    Args:
        imports: The user's own modules that it needs.
    """
    return prepare_packed(len, lambda target, _: payloads.pack(len, ((),), {}, target, imports), options)


def prepare_packed(function: Callable[..., Any], pack: Pack, options: Options) -> Prepared:
    """Prepare a call whose bytes `pack` makes for a Python (None for this one's).

    Raises:
        ConfigError, PayloadError, EnvironmentBuildError, Unsatisfiable, HostError: Before anything is sent.
    """
    with job_display.nothing_runs():
        chosen = config_file.host_of_call(options)
        host, options = chosen.host, chosen.options
        host_state = open_host(host)
        rules = host_state.scheduler_rules
        if options.scheduler_options:
            host = chosen.called
            rules = scheduler_for(host)
        resources = resources_of(options, host, rules)
        if options.warn_s is not None:
            checkpoint.check_warning(options, resources, rules)
        if options.requeue:
            checkpoint.check_requeue(options, resources, rules)
        if options.priority and rules.has_nodes:
            raise ConfigError(
                f"priority={options.priority} is for clusterfn's own queue, and {host.name} has a scheduler",
                host=host.name, hint=rules.priority_hint,
            )  # fmt: skip
        name = options.name or job_name(str(attribute(function, "__name__", "function")))
        secret, usual = _variables_of(host, options)
        # Solving an environment takes minutes, so a job that can never fit is rejected before it.
        host_state.capacity.enough(resources)
        payload, ready = _pack_for_environment(host_state, pack, options, resources, name)
        job = JobSpec(
            id=secrets.token_hex(8), name=name, host=host, root=host_state.root, bridge=host_state.bridge.folder,
            host_python=host_state.connection.facts.python, login_umask=host_state.connection.facts.umask,
            interpreter=ready.interpreter, building=ready.made.building if ready.made else None,
            env={**host.env, **usual, **options.env, "CLUSTERFN_FILES": f"{host_state.root}/{layout.FILES}"},
            secrets={**secret, **secret_values(options)}, modules=options.modules, resources=resources,
            scheduler_options=options.scheduler_options.get(host.scheduler, {}), outputs=options.outputs,
            cwd=options.cwd, after=payload.after, stall_s=options.stall_s, retries=options.retries,
            requeue=options.requeue, passed_on=options_passed_on(options),
            resume=checkpoint.to_resume(host_state, options.resume) if options.resume else None,
            keep_value=options.keep, has_value=not attribute(function, "is_without_value", False),
            results=host.result_policy(options.results, options.max_result_bytes),
            notify=notification_of(host, options),
        )  # fmt: skip
        job = job._replace(sys_path=sending.module_folders(job, payload))
        notes.tell(payload.notes, job, sending.is_in_place(job.host, job.interpreter))
        return Prepared(
            host_state, job, payload, ready, f"{name} on {host.name} ({chosen.because})", chosen.config.path
        )


def _pack_for_environment(
    host: HostState, pack: Pack, options: Options, resources: Resources, name: str
) -> tuple[payloads.Payload, ResolvedEnvironment]:
    """Pack the call for the Python of its environment, and find that environment.

    The Python is known first where the environment exists on the host, or was resolved before. Else the call is packed
    for this one. What it imports decides which environment is used, and what cannot be sent is found before an
    environment is solved. If that has another Python, the call is packed again, as code goes there as text.
    """

    place = Place(host.settings.name, host.root)

    @functools.cache
    def pack_for(version: tuple[int, int]) -> payloads.Payload:
        with job_display.preparing(name):
            return pack(None if version == CALLER else version, place)

    request = EnvironmentRequest(
        options.environment, options.packages, resources.gpus, lambda: payloads.imports_of(pack_for(expected))
    )
    expected = host.environments.expected_python(request) or CALLER
    payload = pack_for(expected)
    ready = host.environments.find(request, console.tell)
    if ready.interpreter.version != expected:
        payload = pack_for(ready.interpreter.version)
    return payload, ready


def resources_of(options: Options, host: Host, scheduler: Scheduler) -> Resources:
    """Return what the decorator asked for, completed by the host's defaults.

    Raises:
        ConfigError: A type or size of GPUs without GPUs, or one that the host's scheduler does not know; or nodes of a
            host without any.
    """
    defaults = host.defaults
    gpus = defaults.gpus if options.gpus is None else options.gpus
    resources = Resources(
        cores=options.cores or defaults.cores, memory_bytes=options.memory_bytes or defaults.memory_bytes, gpus=gpus,
        time_s=options.time_s or defaults.time_s, nodes=options.nodes or 1,
        tasks_per_node=options.tasks_per_node or 1, allow_cpu=bool(options.allow_cpu),
    )  # fmt: skip
    if gpus:
        resources = resources._replace(
            gpu_memory_bytes=options.gpu_memory_bytes or defaults.gpu_memory_bytes,
            gpu_type=options.gpu_type or defaults.gpu_type,
        )
    for word, value in (("gpu_type", options.gpu_type), ("gpu_memory", options.gpu_memory_bytes)):
        if value is not None and not gpus:
            message = f"{word}= selects GPUs, but the call asks for none"
            raise ConfigError(message, hint=f"add gpus=1, or remove {word}=")
    return scheduler.resolve_resources(resources)


def send_call(prepared: Prepared, live: bool = False, in_turn: bool = False) -> tuple[Job[Any], Tracker]:
    """Send a prepared call, start it, and follow it; return its Job and what follows it.

    Args:
        live: Whether what it prints is followed.
        in_turn: Whether to follow it only once it is one of the oldest jobs of its host, or begins.
    """
    host, spec = prepared.host, prepared.job
    tracker = Tracker(host, spec.id, spec.name, live, keeps=spec.keep_value, results=spec.results)
    job: Job[Any] = Job(spec.id, spec.name, spec.host.name, tracker.folder, tracker)
    tracker.entry = entry = entry_of(job)
    entry.fetch_when_done(spec.outputs)
    entry.asked, tracker.time_s = spec.resources, spec.resources.time_s
    entry.has_value = spec.has_value
    tracker.inputs = prepared.payload.inputs
    entry.given = sending.given_paths(host.root, prepared.payload)
    _send_now(prepared, entry, tracker, in_turn)
    return job, tracker


def _send_now(prepared: Prepared, entry: JobEntry, tracker: Tracker, in_turn: bool) -> None:
    """Send the call, start it, and follow it."""
    host, spec = prepared.host, prepared.job
    sending.await_room(host)
    inputs = sending.inputs_of(prepared.payload)
    entry.submitted_at = time.monotonic()
    history.remember(entry, prepared.config, spec.results, spec.secrets)
    needs, environment = send_needs(prepared, entry)
    sending.submit_job(host, spec, prepared.payload, needs, tracker, inputs)
    # Without a scheduler the job begins at once, and follows its builder itself.
    if environment and host.scheduler.has_nodes:
        environment.report_to(tracker.waits_for, tracker.cannot_have)
    tracker.follow(in_turn)
    leaving.remember_going(entry)


def send_needs(prepared: Prepared, job: JobEntry | GroupState) -> tuple[sending.Uploads, EnvironmentUpload | None]:
    """Send what the host lacks, and start the builder of an environment that is made.

    Returns:
        What the job needs, and the upload of the environment.
    """
    environment, locked = None, prepared.ready.made
    with job_display.nothing_runs():
        if locked is not None:
            # The module takes time to import, and many calls make no environment.
            from clusterfn.calls import environment_upload

            environment = environment_upload.upload_for(prepared.host, locked, job, console.tell)
        needs = sending.send_needs(prepared.host, prepared.payload, prepared.ready.folders)
    if environment is not None:
        needs = needs._replace(before=[*needs.before, *environment.before])
    return needs, environment


def _variables_of(host: Host, options: Options) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of this process that `secrets:` of the host names, and `env=` does not set: secrets, others.

    A pattern such as WANDB_* also finds WANDB_MODE=online, and masking that word would damage every traceback.
    """
    values = {name: os.environ[name] for name in host_secrets(host, os.environ) if name not in options.env}
    secret = {name: value for name, value in values.items() if name in host.secrets or _SECRET.search(name)}
    return secret, {name: value for name, value in values.items() if name not in secret}


def host_secrets(host: Host, names: Iterable[str]) -> list[str]:
    """Return those of the names that `secrets:` of the host means."""
    return [
        name for name in names
        if any(fnmatch.fnmatchcase(name, each) for each in host.secrets) and not is_set_by_clusterfn(name)
    ]  # fmt: skip


def secret_values(options: Options) -> dict[str, str]:
    """Return the values, in this process, of the variables that `secrets=` names.

    Raises:
        ConfigError: One of them is not set here.
    """
    missing = [name for name in options.secrets if name not in os.environ]
    if missing:
        message = f"secrets= names {missing[0]}, which is not set in this process"
        raise ConfigError(message, hint=f"export {missing[0]}=…")
    return {name: os.environ[name] for name in options.secrets}


def notification_of(host: Host, options: Options) -> dict[str, Any]:
    """Return what the host runs when a job has ended; {} for nothing."""
    notify = host.notify if options.notify is None else options.notify
    return notify._asdict() if notify and notify.command else {}


# A function that is called often gets its name only once.
@functools.lru_cache
def job_name(name: str) -> str:
    """Return a name that `name=` would take: in letters of any script, beginning with one or "_", of at most 64.

    A scheduler may know the job by another one: `layout.job_name`.

    Example:
        >>> job_name("<lambda>"), job_name("01 train"), job_name("größe")
        ('lambda', '_01_train', 'größe')
    """
    fitting = unicodedata.normalize("NFC", name)
    fitting = "".join(sign if may_be_in_a_name(sign) else " " for sign in fitting)
    fitting = "_".join(fitting.split()).strip("_.-") or "function"
    return fitting[:64] if fitting[0].isidentifier() else f"_{fitting}"[:64]
