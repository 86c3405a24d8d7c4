"""What a call asks of its host: checked before its environment is looked for, as solving one takes minutes."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import secrets
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.calls import checkpoint
from clusterfn.config.environment_kinds import is_set_by_clusterfn
from clusterfn.config.job_spec import JobSpec, options_passed_on
from clusterfn.config.option_checks import may_be_in_a_name
from clusterfn.config.spec import Host, Resources
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.hosts.environment_choice import EnvironmentRequest, ResolvedEnvironment
from clusterfn.hosts.host_state import HostState, open_host
from clusterfn.packing.dependencies import Place
from clusterfn.packing.payload import imports_of
from clusterfn.scheduler import scheduler_for

if TYPE_CHECKING:
    from clusterfn.config.config_file import CallHost
    from clusterfn.config.options import Options
    from clusterfn.packing.payload import Payload
    from clusterfn.scheduler.base import Scheduler

_USUAL_NAME = re.compile("[A-Z_]+")
# Names of variables whose values are secrets.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH", re.IGNORECASE)


class Demand(NamedTuple):
    """What a call asks of its host.

    Attributes:
        job: Its job, as far as it is known before the call is packed and its environment is found.
        wanted: What it says of its environment.
        where: The sentence that says where it runs and what decided that.
        config: The file that defines the host, if any.
    """

    host: HostState
    job: JobSpec
    wanted: EnvironmentRequest
    where: str
    config: Path | None

    @property
    def place(self) -> Place:
        """Where the call goes."""
        return Place(self.job.host.name, self.job.root)

    def expected_python(self) -> tuple[int, int]:
        """Return the Python of its environment if that is known by now, else the one of this process."""
        return self.host.environments.expected_python(self.wanted)

    def find_environment(self, payload: Payload) -> ResolvedEnvironment:
        """Find the environment for what the payload imports; raise as `EnvironmentResolver.find`."""
        return self.host.environments.find(self.wanted, console.tell, imports_of(payload))


def demand_of(chosen: CallHost, function_name: str) -> Demand:
    """Compare what a call asks for with what its host has.

    Raises:
        ConfigError, Unsatisfiable, HostError: The host does not have it, or cannot be asked.
    """
    options, settings, host = chosen.options, chosen.called, open_host(chosen.host)
    rules = scheduler_for(settings) if options.scheduler_options else host.scheduler_rules
    resources = resources_of(options, settings, rules)
    if options.warn_s is not None:
        checkpoint.check_warning(options, resources, rules)
    if options.requeue:
        checkpoint.check_requeue(options, resources, rules)
    if options.priority and rules.has_nodes:
        message = f"priority={options.priority} is for clusterfn's own queue, and {settings.name} has a scheduler"
        raise ConfigError(message, host=settings.name, hint=rules.priority_hint)
    named = secret_values(options)
    by_host = {name: os.environ[name] for name in host_secrets(settings, os.environ) if name not in options.env}
    # A pattern such as WANDB_* also finds WANDB_MODE=online, and masking that word would damage every traceback.
    secret = {name: value for name, value in by_host.items() if name in settings.secrets or _SECRET.search(name)}
    usual = {name: value for name, value in by_host.items() if name not in secret}
    host.capacity.enough(resources)
    facts = host.connection.facts
    job = JobSpec(
        id=secrets.token_hex(8),
        name=options.name or job_name(function_name),
        host=settings,
        root=host.root,
        bridge=host.bridge.folder,
        host_python=facts.python,
        resources=resources,
        login_umask=facts.umask,
        env={**settings.env, **usual, **options.env, "CLUSTERFN_FILES": f"{host.root}/{layout.FILES}"},
        secrets={**secret, **named},
        modules=options.modules,
        scheduler_options=options.scheduler_options.get(settings.scheduler, {}),
        outputs=options.outputs,
        cwd=options.cwd,
        stall_s=options.stall_s,
        retries=options.retries,
        requeue=options.requeue,
        passed_on=options_passed_on(options),
        resume=checkpoint.to_resume(host, options.resume) if options.resume else None,
        keep_value=options.keep,
        results=settings.result_policy(options.results, options.max_result_bytes),
        notify=notification_of(settings, options),
    )
    wanted = EnvironmentRequest(options.environment, options.packages, resources.gpus, options.binds)
    return Demand(host, job, wanted, f"{job.name} on {settings.name} ({chosen.because})", chosen.config.path)


def resources_of(options: Options, host: Host, scheduler: Scheduler) -> Resources:
    """Return what the decorator asked for, completed by the host's defaults.

    Raises:
        ConfigError: A type or size of GPUs without GPUs, or one that the host's scheduler does not know; or nodes of a
            host without any.
    """
    defaults = host.defaults
    gpus = defaults.gpus if options.gpus is None else options.gpus
    resources = Resources(
        cores=options.cores or defaults.cores,
        memory_bytes=options.memory_bytes or defaults.memory_bytes,
        gpus=gpus,
        time_s=options.time_s or defaults.time_s,
        nodes=options.nodes or 1,
        tasks_per_node=options.tasks_per_node or 1,
        allow_cpu=bool(options.allow_cpu),
    )
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


def host_secrets(host: Host, names: Iterable[str]) -> list[str]:
    """Return those of the names that `secrets:` of the host means."""
    found = (name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in host.secrets))
    return [name for name in found if not is_set_by_clusterfn(name)]


def secret_values(options: Options) -> dict[str, str]:
    """Return the values, in this process, of the variables that `secrets=` names.

    Raises:
        ConfigError: One of them is not set here.
    """
    missing = [name for name in options.secrets if name not in os.environ]
    if missing:
        word, hint = "a variable", "write names, not values"
        # Other words may be the secret itself.
        if _USUAL_NAME.fullmatch(missing[0]):
            word, hint = missing[0], f"export {missing[0]}=…"
        raise ConfigError(f"secrets= names {word}, which is not set in this process", hint=hint)
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
