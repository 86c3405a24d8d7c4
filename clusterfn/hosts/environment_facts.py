"""Ask a host what an environment for it depends on: where environments are, and which GPUs it has."""

from __future__ import annotations

import json
import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor import nvidia_smi
from clusterfn.environment import python_source, resolve, torch_build
from clusterfn.environment.cuda import GpuCapabilities
from clusterfn.errors import ConfigError, EnvironmentBuildError
from clusterfn.hosts import remote_files
from clusterfn.hosts.gpus import ask_types
from clusterfn.scheduler import scheduler_for

if TYPE_CHECKING:
    from clusterfn.environment.conda_solver import Say
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.environment.specification import Specification
    from clusterfn.hosts.connected_host import ConnectedHost

_TIMEOUT_S = 60.0
_DRIVER_FIELDS = ("driver_version", "compute_cap")
_MISLEADING = ("LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV")  # variables of an interpreter; a build has none of them
_EXPAND = "import os, sys; print(os.path.expanduser(os.path.expandvars(sys.argv[1])))"


def lock_environment(
    session: ConnectedHost, spec: Specification, gpus: int, caller: tuple[int, int], say: Say
) -> LockedEnvironment:
    """Lock a specification for a host.

    Raises:
        LockError, EnvironmentBuildError, ConfigError: As `resolve.resolve_environment`.
    """
    told, spec = platform_facts(session), with_python(session, spec, caller)

    def ask() -> GpuCapabilities | None:
        found, scheduler = known_gpus(session, told["root"]), scheduler_for(session.host)
        if found or not scheduler.has_nodes:  # a machine without a scheduler has no others
            return found
        return None if ask_types(session.connection, scheduler) == [] else torch_build.unknown_gpus(session.host)

    known = gpus_of_jobs(session, told["root"]) if gpus else None
    try:
        return resolve.resolve_environment(spec, session.host, told, known, caller, say, ask)
    except EnvironmentBuildError as error:
        error.host = session.host.name
        raise


def explain_stale_lock(session: ConnectedHost, spec: Specification, gpus: int, caller: tuple[int, int]) -> str:
    """Say why the existing lock does not fit the host; "" if it does."""
    told, spec = platform_facts(session), with_python(session, spec, caller)
    return resolve.why_stale(spec, session.host, told, gpus_of_jobs(session, told["root"]) if gpus else None, caller)


def with_python(session: ConnectedHost, spec: Specification, caller: tuple[int, int]) -> Specification:
    """Return a specification with the source of its Python, which clusterfn.yml may name, and the host's interpreter.

    Raises:
        EnvironmentBuildError: The host has no interpreter that fits.
        LockError: The project admits no Python.
    """
    if spec.project is None or spec.python.found:
        return spec
    source = spec.python if spec.python.kind else python_source.parse_source(session.host.making.python)
    if source.kind == python_source.HOST:
        argv = python_source.question(source, spec.project, caller)
        answer = session.connection.run(argv, unset=_MISLEADING, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
        printed, platform = answer.out.decode("utf-8", "replace"), session.connection.facts.platform
        found = python_source.choose(source, spec.project, platform, printed, session.host.name)
        source = replace(source, found=found)
    return replace(spec, python=source)


def platform_facts(session: ConnectedHost) -> dict[str, str]:
    """Return what a lock for the host depends on, and where environments are."""
    known = session.connection.facts
    return {"platform": known.platform, "glibc": known.glibc, "root": environments_root(session)}


def environments_root(session: ConnectedHost) -> str:
    """Return the folder below which environments are on the host, absolute.

    Raises:
        ConfigError: `env_root:` is no absolute path on the host.
    """
    wanted = session.host.making.root
    if wanted is None or wanted == session.host.root:
        return session.root
    if wanted.startswith("/") and "$" not in wanted:
        return posixpath.normpath(wanted)
    python = session.connection.facts.python
    answer = session.connection.run([python, "-I", "-S", "-c", _EXPAND, wanted]).result(_TIMEOUT_S)
    found = answer.out.decode("utf-8", "surrogateescape").strip()
    if not found.startswith("/") or "$" in found:
        raise ConfigError(
            f"env_root: {wanted} is not an absolute path on {session.host.name}", host=session.host.name,
            evidence=[found or "nothing"], hint="is a variable unset there?",
        )  # fmt: skip
    return posixpath.normpath(found)


def gpus_of_jobs(session: ConnectedHost, environments: str) -> GpuCapabilities:
    """Return what is known of the GPUs of a job: from clusterfn.yml, the machine, or an earlier job; else a guess."""
    return known_gpus(session, environments) or torch_build.unknown_gpus(session.host)


def known_gpus(session: ConnectedHost, environments: str) -> GpuCapabilities | None:
    """Return the same, or None instead of a guess."""
    host = session.host
    if host.making.driver:
        return torch_build.unknown_gpus(host)
    if not scheduler_for(host).has_nodes:
        question = nvidia_smi.query(_DRIVER_FIELDS)
        argv = ["/bin/sh", "-c", 'command -v "$1" >/dev/null && exec "$@"', "sh", *question]
        answer = session.connection.run(argv, timeout_s=20.0).result(_TIMEOUT_S)
        text = answer.out.decode("utf-8", "replace")
        rows = nvidia_smi.read_table(text, _DRIVER_FIELDS).rows
        if nvidia_smi.has_failed(answer.rc, text) or not rows:
            return None
        capabilities = _capabilities(row["compute_cap"] for row in rows)
        return GpuCapabilities(rows[0]["driver_version"], capabilities, f"nvidia-smi says on {host.name}")
    # what the last job on the partition saw
    name = scheduler_for(host).gpus().partition or layout.DEFAULT
    text = remote_files.read_text(
        session.connection, posixpath.join(environments, layout.OBSERVED_GPUS, f"{name}.json")
    )
    try:
        told: dict[str, Any] = json.loads(text) if text else {}
        capabilities = _capabilities(told["capabilities"])
        return GpuCapabilities(told["driver"], capabilities, f"the last job saw on {told['node']}")
    except (ValueError, KeyError, TypeError):
        return None


def _capabilities(told: Any) -> tuple[str, ...]:
    found = {str(each).strip() for each in told}
    return tuple(sorted(each for each in found if each.replace(".", "").isdigit()))
