"""Read which GPUs a host has from its nvidia-smi or its scheduler, and reject a call that asks for others.

The host itself decides which of them are free. `clusterfn.gpu.smi` reads nvidia-smi in the user's own process, where
only the standard library may be imported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    is_gpu_id,
    is_gpu_type,
    suggest_gpus,
)
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.errors import HostError, Unsatisfiable, nearest_word

if TYPE_CHECKING:
    from clusterfn.config.spec import Host, Resources
    from clusterfn.hosts.connection import HostConnection
    from clusterfn.scheduler.base import Scheduler

PATIENCE_S = 30.0
_FIELDS = ("index", "uuid", "memory.total", "name")


def ask(connection: HostConnection) -> tuple[GpuInfo, ...] | None:
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
    return read(text, connection.facts.memory_bytes >> 20)


def read(text: str, machine_mib: int) -> tuple[GpuInfo, ...] | None:
    """Read the GPUs from a table of nvidia-smi; return None for anything else. Pure.

    Args:
        text: What it printed.
        machine_mib: The memory of the host, which a GPU without its own uses.
    """
    table = nvidia_smi.read_table(text, _FIELDS)
    return None if table.other or not table.rows else tuple(gpus_in(table.rows, machine_mib))


def allowed(gpus: tuple[GpuInfo, ...], host: Host) -> tuple[GpuInfo, ...]:
    """Return the GPUs that `gpus: {only: …}` of the host leaves.

    Raises:
        Unsatisfiable: It names a GPU that is not there.
    """
    for name in host.gpus_only:
        if not any(is_called(gpu, name) for gpu in gpus):
            near = nearest_word(name, [gpu.uuid for gpu in gpus], 0.75)
            has = ", ".join(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in gpus)
            raise Unsatisfiable(
                f"{describe_only(host.gpus_only)} names {name}, and {host.name} has no such GPU", host=host.name,
                stage="submit", evidence=[f"it has {has}"],
                hint=f"did you mean {near}?" if near else f"correct it in {host.source}",
            )  # fmt: skip
    return tuple(allowed_gpus(gpus, host.gpus_only))


def enough_allowed(gpus: tuple[GpuInfo, ...], request: Resources, host: Host) -> None:
    """Reject more GPUs than `gpus: {only: …}` leaves.

    Raises:
        Unsatisfiable: Names the key.
    """
    if request.gpus > len(gpus):
        most = f"ask for at most {len(gpus)}, or change gpus:" if gpus else "remove gpus=, or change gpus:"
        raise Unsatisfiable(
            f"gpus={request.gpus} is more than {describe_only(host.gpus_only)} leaves of {host.name}: {len(gpus)}",
            host=host.name, stage="submit", hint=f"{most} in {host.source}",
        )  # fmt: skip


def hides_some(setting: str, there: int) -> bool:
    """Return whether a variable of the account leaves fewer GPUs than the host has.

    The runtimes of containers set one that names each GPU of the container, often by its number outside.

    Args:
        setting: As NAME=VALUE; "" for none.
        there: How many GPUs the host has.
    """
    return bool(setting) and len(set(_named(setting))) < there


def _named(setting: str) -> list[str]:
    value = setting.partition("=")[2]
    return [name for name in re.split("[, ]+", value) if is_gpu_id(name)]


def about_visible(setting: str, host: str) -> str:
    """Say that a variable of the account does not choose the GPUs of jobs.

    Args:
        setting: As NAME=VALUE.
        host: Its name.
    """
    only = describe_only(_named(setting) or ["0"])
    return (
        f"{in_one_line(setting)} is set on {host}, but clusterfn itself chooses the GPUs of each job; "
        f"to use only some of them, write `{only}` for {host} in clusterfn.yml"
    )


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


def enough(gpus: tuple[GpuInfo, ...] | None, request: Resources, host: str) -> None:
    """Reject a type or a size of which the host has too few.

    Raises:
        Unsatisfiable: Names the GPUs of the host.
    """
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
    names = [each for each in types if each]
    near = next((each for each in names if is_gpu_type(each, kind)), None) or nearest_word(kind, names, 0.75)
    other = "ask for one of these types, or choose another host" if names else "leave gpu_type= out"
    do = f'did you mean gpu_type="{near}"?' if near else other if types else "choose another host"
    if not types:
        offer = f"no node of {host} has a gres named gpu"
    elif not names:
        offer = f"the GPUs of {host} have no types in {scheduler}"
    else:
        some = "; some of its GPUs have none" if "" in types else ""
        offer = f"the types of {host} are: {', '.join(names)}{some}"
    raise _unsatisfiable(request, host, offer, do)


def _unsatisfiable(request: Resources, host: str, offer: str, do: str) -> Unsatisfiable:
    words = describe_request(request.gpus, request.gpu_type, request.gpu_memory_bytes)
    return Unsatisfiable(f"the call asks for {words}, and {offer}", host=host, stage="submit", hint=do)
