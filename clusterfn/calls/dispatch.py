"""The story of a call, from top to bottom.

    a function and its arguments  ->  which host, which environment  ->  bytes  ->  the host  ->  a Job

Nothing is sent before all of it is known to be right. How a thing is done stands elsewhere; here stands in which
order.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from clusterfn import config
from clusterfn.bridge import layout
from clusterfn.calls import (
    checkpoint,
    dry_run,
    files,
    history,
    host_defaults,
    job_display,
    user_modules,
)
from clusterfn.calls import payload as payloads
from clusterfn.calls import (
    submit as calls_submit,
)
from clusterfn.calls.job import Job
from clusterfn.calls.job_display import remember_going
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config.options import Options
from clusterfn.config.spec import JobSpec, Resources
from clusterfn.errors import ConfigError, EnvironmentBuildError
from clusterfn.hosts.environment_choice import EnvironmentRequest, ResolvedEnvironment
from clusterfn.hosts.host_state import CALLER, HostState, open_session

R = TypeVar("R")
_told: set[str] = set()
_NAMED = 5  # large files


def call(function: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> R:
    """Run the call on its host, show what it prints, and return its value or raise its exception."""
    prepared = prepare(function, args, kwargs, options)
    try:
        value: R = _live(prepared, options)
    except EnvironmentBuildError as error:
        if error.stage != layout.CARDS_STAGE:
            raise
        tell(f"{error.message} ({'; '.join(error.evidence)}): choosing again")
        again = prepare(function, args, kwargs, options)
        _refuse_the_same(error, prepared.ready, again.ready)
        value = _live(again, options)
    return value


def _live(prepared: Prepared, options: Options) -> Any:
    job: Job[Any] = start(prepared, live=True)
    try:
        return job_display.result(job, prepared.where, options.on_interrupt)
    finally:
        _learn(prepared.session, job)


def _learn(session: HostState, job: Future[Any]) -> None:
    """Choose the environment of the next call again if this one was made for other GPUs than its job has seen."""
    error = job.exception() if job.done() and not job.cancelled() else None
    if isinstance(error, EnvironmentBuildError) and error.stage == layout.CARDS_STAGE:
        session.forget_environments()


def _refuse_the_same(error: EnvironmentBuildError, before: ResolvedEnvironment, after: ResolvedEnvironment) -> None:
    """What does not run on these cards is not sent to them again."""
    if before.made and after.made and before.made.id == after.made.id:
        error.hint = "ask for a build that has code for these cards: pin cuda-version=…, or take torch from PyPI (pip:)"
        raise error


def submit(function: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> Job[R]:
    """Send the call and return its Job."""
    prepared = prepare(function, args, kwargs, options)
    return start(replace(prepared, payload=_kept(prepared.payload)))


def script(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> str:
    """What `submit` would send and run, as text. Nothing is sent but the questions that find the environment."""
    prepared = prepare(function, args, kwargs, options)
    return dry_run.describe(prepared.session, prepared.job, prepared.payload, prepared.ready)


def _kept(payload: payloads.Payload) -> payloads.Payload:
    """Copy its large buffers: after `submit` the caller may change his arrays."""
    return replace(payload, blobs={digest: memoryview(bytes(view)) for digest, view in payload.blobs.items()})


@dataclass(frozen=True)
class Prepared:
    """A call of which everything is known, and nothing sent.

    Attributes:
        where: The sentence that says where it runs and what decided that.
        config: The file that defines the host, if any.
    """

    session: HostState
    job: JobSpec
    payload: payloads.Payload
    ready: ResolvedEnvironment
    where: str
    config: Path | None


def prepare(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> Prepared:
    """Find the host and the environment, turn the call into bytes, and check all of it; raises as `prepare_packed`."""
    return prepare_packed(function, lambda target: payloads.pack(function, args, kwargs, target), options)


def prepare_packed(
    function: Callable[..., Any], pack: Callable[[tuple[int, int] | None], payloads.Payload], options: Options
) -> Prepared:
    """The same for what `pack` turns into bytes, for the Python that it is told, None for this one's.

    Raises:
        ConfigError, PayloadError, EnvironmentBuildError, Unsatisfiable, HostError: Before anything is sent.
    """
    with job_display.nothing_runs():
        return _prepare_packed(function, pack, options)


def _prepare_packed(
    function: Callable[..., Any], pack: Callable[[tuple[int, int] | None], payloads.Payload], options: Options
) -> Prepared:
    known = config.load()
    host, because = known.resolve(options.host)
    resources = host_defaults.resources_of(options, host)
    name = job_name(options.name or str(getattr(function, "__name__", "function")))
    with job_display.preparing(name):
        payload = pack(None)
    tell_left_out(payload)
    hidden = secret_values(options)
    session = open_session(host)
    session.enough(resources)  # before an environment for it is solved, which takes minutes
    ready = session.environment(wanted_environment(payload, options, resources), tell)
    version = ready.interpreter.version
    for sentence in payload.decided_here:
        if sentence not in _told:  # once is enough for a function that is called often
            _told.add(sentence)
            tell(sentence)
    if version != CALLER:  # code goes as text then
        payload = replace(pack(version), edited=payload.edited)
    if warning := session.warning():
        tell(warning)
    job = JobSpec(
        id=secrets.token_hex(8),
        name=name,
        host=host,
        root=session.root,
        bridge=session.bridge,
        host_python=session.connection.facts.python,
        resources=resources,
        interpreter=ready.interpreter,
        sys_path=(layout.sources_dir(session.root, payload.sources.digest),) if payload.sources else (),
        modules=options.modules,
        env={**host.env, **options.env, "CLUSTERFN_FILES": f"{session.root}/{layout.FILES}"},
        secrets=hidden,
        outputs=options.outputs,
        cwd=options.cwd,
        stall_s=options.stall_s,
        retries=options.retries,
        umask=session.connection.facts.umask,
        resume=checkpoint.to_resume(session, options.resume) if options.resume else None,
        building=ready.made.building if ready.made else None,
    )
    return Prepared(session, job, payload, ready, f"{name} on {host.name} ({because})", known.path)


def tell_left_out(payload: payloads.Payload) -> None:
    """Name once the files of modules that do not travel: large data, and what looks like keys or passwords.

    Such files that the user passed are sent, and named too.
    """
    large = files.not_told(sorted(user_modules.too_large))
    if large:
        more = f" and {len(large) - _NAMED} more" if len(large) > _NAMED else ""
        tell(
            f"not sent, because data files of your packages travel only up to {user_modules.MAX_DATA_FILE >> 20} MB: "
            f"{', '.join(map(str, large[:_NAMED]))}{more}. To send one, pass clusterfn.File(PATH)"
        )
    withheld = files.not_told(sorted(user_modules.withheld))
    if withheld:
        tell(
            f"not sent, because they look like keys or passwords: {', '.join(map(str, withheld))}. "
            "To send one, pass clusterfn.File(PATH); for a variable of this process use secrets=[NAME]"
        )
    folders = [each for each in payload.shipments if each.is_directory]
    sent = [path for each in folders for _, path in each.members if files.holds_credentials(path)]
    for path in files.not_told(sent):
        tell(f"{path} looks like a key or a password, and is sent with its Directory")


def wanted_environment(payload: payloads.Payload, options: Options, resources: Resources) -> EnvironmentRequest:
    """What the call says of its environment, and what it needs there."""
    return EnvironmentRequest(
        options.environment, options.packages, resources.gpus, lambda: payloads.imports_of(payload)
    )


def start(prepared: Prepared, live: bool = False) -> Job[Any]:
    """Send a prepared call, start it, and follow it."""
    return send(prepared, live)[0]


def send(prepared: Prepared, live: bool = False) -> tuple[Job[Any], Tracker]:
    """Send a prepared call, start it, and follow it; return what follows it, too."""
    session, spec = prepared.session, prepared.job
    tracker = Tracker(session, spec.id, spec.name, live)
    job: Job[Any] = Job(spec.id, spec.name, spec.host.name, tracker.folder, tracker)
    job.fetch_when_done(spec.outputs)
    job.given = calls_submit.given_paths(session.root, prepared.payload)
    for name in prepared.payload.edited:
        tell(f"{name} was changed since it was imported here; the job gets the file as it is now")
    for note in prepared.payload.notes:
        tell(f"in the arguments {note}")
    history.remember(job, prepared.config)
    job.add_done_callback(functools.partial(_learn, session))
    calls_submit.send(session, spec, prepared.payload, prepared.ready, job, tracker, tell)
    tracker.follow(job, 1)
    remember_going(job)
    return job, tracker


def secret_values(options: Options) -> dict[str, str]:
    """The values, from this process, of the variables that `secrets=` names.

    Raises:
        ConfigError: One of them is not set here.
    """
    missing = [name for name in options.secrets if name not in os.environ]
    if missing:
        raise ConfigError(f"secrets names {missing[0]}, which is not set here", hint=f"export {missing[0]}=…")
    return {name: os.environ[name] for name in options.secrets}


def job_name(name: str) -> str:
    """A name that every scheduler takes: letters, digits, dot, dash, underscore; at most 40.

    Example:
        >>> job_name("<lambda>")
        'lambda'
    """
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:40] or "function"


def tell(sentence: str) -> None:
    """A sentence of ours on stderr."""
    job_display.say(f"clusterfn: {sentence}\n")
