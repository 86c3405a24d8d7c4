"""What the jobs of a host may get: its cores, memory and GPUs, within the `limits:` of its user.

nvidia-smi or the scheduler says which GPUs there are; the host itself decides which of them are free. A call that can
never run fails here, before anything is sent.

`clusterfn.gpu.smi` reads nvidia-smi in the user's own process, where only the standard library may be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from clusterfn.bridge.supervisor import nvidia_smi
from clusterfn.bridge.supervisor.eligible_gpus import (
    GpuInfo,
    allowed_gpus,
    describe_gpus,
    describe_only,
    describe_request,
    eligible_gpus,
    gpus_in,
    is_called,
    is_gpu_type,
    suggest_gpus,
)
from clusterfn.bridge.supervisor.text import format_size
from clusterfn.config import config_file
from clusterfn.config.spec import Host, Resources
from clusterfn.config.units import exact_memory
from clusterfn.errors import ConfigError, HostError, Unsatisfiable, nearest_word

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection
    from clusterfn.scheduler.base import Scheduler

PATIENCE_S = 30.0
_FIELDS = ("index", "uuid", "memory.total", "name")


class ConnectedHost(Protocol):
    """A host that is connected when it is first asked for anything; `HostState` is one."""

    settings: Host

    @property
    def connection(self) -> HostConnection:
        """The one connection to it."""

    @property
    def root(self) -> str:
        """Its root, absolute."""

    @property
    def scheduler(self) -> Scheduler:
        """What builds its commands and reads their answers."""

    def missing(self, paths: list[str]) -> set[str]:
        """Return which of these paths it lacks."""


class HostCapacity:
    """What one host gives to jobs, as this process knows it."""

    def __init__(self, host: ConnectedHost) -> None:
        self._host, self._settings = host, host.settings
        self._gpus: tuple[GpuInfo, ...] | None = None
        self._types: tuple[Sequence[str] | None, ...] = ()

    def enough(self, request: Resources) -> None:
        """Reject what a host without a scheduler can never give, and a type of GPU that a cluster does not have.

        Raises:
            Unsatisfiable: It has fewer cores, less memory or fewer GPUs than that.
        """
        if self._host.scheduler.has_nodes:
            self.require_commands()
            if request.gpu_type:
                require_type(self.gpu_types, request, self._settings.name, self._host.scheduler.title)
            return
        facts = self._host.connection.facts
        limits = self._settings.limits
        host = self._settings
        amounts: list[tuple[str, int, int | None, Callable[[int], str]]] = [
            ("gpus", request.gpus, limits.gpus, str),
            ("cores", request.cores, limits.cores, str),
            ("memory", request.memory_bytes or 0, limits.memory_bytes, exact_memory),
        ]
        for name, amount, limit, as_text in amounts:
            if limit is not None and amount > limit:
                # Such a job would wait forever, because not even the end of
                # all other jobs of the user makes enough room.
                most = f"more than all your jobs on {host.name} may have: {as_text(limit)}"
                hint = f"ask for at most {as_text(limit)}, or change limits: {{{name}: …}} in {host.source}"
                raise Unsatisfiable(f"{name}={as_text(amount)} is {most}", host=host.name, stage="submit", hint=hint)
        # A user may allow more cores than the machine has, because cores are shared in time.
        self._reject_above("cores", request.cores, max(facts.cpus, limits.cores or 0), str)
        self._reject_above("memory", request.memory_bytes or 0, facts.memory_bytes, format_size)
        available = self.gpus if request.gpus else None
        if available is not None:
            if self._settings.gpus_only:
                _require_allowed(available, request, self._settings)
            self._reject_above("gpus", request.gpus, len(available), str)
            if request.gpu_type or request.gpu_memory_bytes:
                _require_gpus(available, request, self._settings.name)

    def require_commands(self) -> None:
        """Reject a host whose PATH lacks its scheduler's commands, with the key for them in the ConfigError."""
        lacking = self._host.connection.facts.lacking
        name = self._settings.name
        source = self._settings.source
        if lacking:
            hint = f"`clusterfn check {name}` asks a login shell where it is; write that folder as "
            hint += f"`scheduler_path: [FOLDER]` for host {name} ({source})"
            message = f"{lacking[0]} is not in PATH of a command over ssh on {name}"
            evidence = [f"scheduler: {self._settings.scheduler} ({source})"]
            raise ConfigError(message, host=name, evidence=evidence, hint=hint)

    def _reject_above(self, name: str, requested: int, available: int, as_text: Callable[[int], str]) -> None:
        if requested > available:
            hint = f"ask for at most {as_text(available)}"
            if not available:
                others = [other for other in config_file.load().named if other != self._settings.name]
                which = f"host={' or '.join(map(repr, others[:3]))}: `clusterfn gpus HOST` shows its GPUs"
                add = "another host: `clusterfn init ADDRESS` adds one"
                hint = f"remove {name}=, or use {which if others else add}"
            message = f"{name}={as_text(requested)} is more than {self._settings.name} has: {as_text(available)}"
            raise Unsatisfiable(message, host=self._settings.name, stage="submit", hint=hint)

    @property
    def gpus(self) -> tuple[GpuInfo, ...] | None:
        """Each GPU of the host that its jobs may get; None if nvidia-smi fails.

        Only an answer with GPUs is kept: a driver may recover.

        Raises:
            Unsatisfiable: `gpus: {only: …}` names one that the host does not have.
        """
        if not self._gpus:
            self._gpus = _ask_gpus(self._host.connection)
        return _allowed_here(self._gpus, self._settings) if self._gpus and self._settings.gpus_only else self._gpus

    @property
    def gpu_types(self) -> Sequence[str] | None:
        """The types of a cluster's GPUs, as its scheduler says; None if it does not."""
        if not self._types:
            self._types = (ask_types(self._host.connection, self._host.scheduler),)
        return self._types[0]

    def count_gpus_for(self, request: Resources) -> int:
        """Return how many GPUs of the requested type and size it has; 0 if that is not known."""
        return len(eligible_gpus(self.gpus or (), request.gpu_type, request.gpu_memory_bytes))


def _ask_gpus(connection: HostConnection) -> tuple[GpuInfo, ...] | None:
    """Return all GPUs of a host; none only where nvidia-smi is not installed.

    Returns:
        None if nvidia-smi hangs, fails or prints something else: the supervisor asks again and reports that.

    Raises:
        HostError: The connection failed.
    """
    try:
        answer = connection.run(nvidia_smi.query(_FIELDS), timeout_s=PATIENCE_S).result(PATIENCE_S + 10.0)
    except HostError as error:
        if error.kind == "missing":
            return ()
        if not error.kind:
            # An error without a kind does not come from the agent: the connection itself has failed.
            raise
        return None
    text = answer.out.decode("utf-8", "replace")
    if nvidia_smi.has_failed(answer.rc, text):
        return None
    return read_gpus(text, connection.facts.memory_bytes >> 20)


def read_gpus(text: str, machine_mib: int) -> tuple[GpuInfo, ...] | None:
    """Read the GPUs from a table of nvidia-smi; return None for anything else. Pure.

    Args:
        text: What it printed.
        machine_mib: The memory of the host, which a GPU without its own uses.
    """
    table = nvidia_smi.read_table(text, _FIELDS)
    return None if table.other or not table.rows else tuple(gpus_in(table.rows, machine_mib))


def _allowed_here(gpus: tuple[GpuInfo, ...], host: Host) -> tuple[GpuInfo, ...]:
    """Return the GPUs that `gpus: {only: …}` leaves; raise Unsatisfiable if one of them is not there."""
    for name in host.gpus_only:
        if not any(is_called(gpu, name) for gpu in gpus):
            near = nearest_word(name, [gpu.uuid for gpu in gpus], 0.75)
            has = "it has " + ", ".join(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in gpus)
            message = f"{describe_only(host.gpus_only)} names {name}, and {host.name} has no such GPU"
            hint = f"did you mean {near}?" if near else f"correct it in {host.source}"
            raise Unsatisfiable(message, host=host.name, stage="submit", evidence=[has], hint=hint)
    return tuple(allowed_gpus(gpus, host.gpus_only))


def _require_allowed(gpus: tuple[GpuInfo, ...], request: Resources, host: Host) -> None:
    """Reject more GPUs than `gpus: {only: …}` leaves, with the key's place in the Unsatisfiable."""
    if request.gpus > len(gpus):
        most = f"ask for at most {len(gpus)}, or change gpus:" if gpus else "remove gpus=, or change gpus:"
        left = f"{describe_only(host.gpus_only)} leaves of {host.name}: {len(gpus)}"
        message = f"gpus={request.gpus} is more than {left}"
        hint = f"{most} in {host.source}"
        raise Unsatisfiable(message, host=host.name, stage="submit", hint=hint)


def ask_types(connection: HostConnection, scheduler: Scheduler) -> Sequence[str] | None:
    """Ask a cluster for the types of its GPUs; None if it cannot say, and the submission shows it."""
    question = scheduler.gpus().types
    if question is None:
        return None
    try:
        answer = connection.run(question.argv, unset=scheduler.unset, timeout_s=20.0).result(30.0)
    except HostError:
        return None
    return question.read(answer.out.decode("utf-8", "replace")) if answer.rc == 0 else None


def _require_gpus(gpus: tuple[GpuInfo, ...] | None, request: Resources, host: str) -> None:
    """Reject a type or a size of which the host has too few, with its GPUs in the Unsatisfiable."""
    if gpus is None or len(eligible_gpus(gpus, request.gpu_type, request.gpu_memory_bytes)) >= request.gpus:
        return
    raise _unsatisfiable(request, host, f"{host} has {describe_gpus(gpus)}", suggest_gpus(gpus, request.gpu_type))


def require_type(types: Sequence[str] | None, request: Resources, host: str, scheduler: str) -> None:
    """Reject a type that no GPU of a cluster has.

    Args:
        scheduler: Its name for people.

    Raises:
        Unsatisfiable: Names the types of the cluster.
    """
    kind = request.gpu_type or ""
    if types is None or kind in types:
        return
    names = [name for name in types if name]
    near = next((name for name in names if is_gpu_type(name, kind)), None) or nearest_word(kind, names, 0.75)
    offer = f"the types of {host} are: {', '.join(names)}" if names else f"{host} has no GPU with a type in {scheduler}"
    other = "ask for one of these types" if names else "leave gpu_type= out"
    do = f'did you mean gpu_type="{near}"?' if near else f"{other}, or choose another host"
    raise _unsatisfiable(request, host, offer, do)


def _unsatisfiable(request: Resources, host: str, offer: str, do: str) -> Unsatisfiable:
    words = describe_request(request.gpus, request.gpu_type, request.gpu_memory_bytes)
    return Unsatisfiable(f"the call asks for {words}, and {offer}", host=host, stage="submit", hint=do)
