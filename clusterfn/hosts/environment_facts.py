"""Ask a host what an environment for it depends on: where environments are, and which GPUs it has."""

from __future__ import annotations

import json
import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor import nvidia_smi
from clusterfn.environment import python_source, resolve, torch_build
from clusterfn.environment.existing import CALLER
from clusterfn.environment.torch_build import GpuCapabilities
from clusterfn.errors import ConfigError, EnvironmentBuildError
from clusterfn.hosts import remote_files
from clusterfn.hosts.host_capacity import ask_types
from clusterfn.scheduler import scheduler_for

if TYPE_CHECKING:
    from clusterfn.environment.conda_solver import Say
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.environment.specification import Specification
    from clusterfn.hosts.connected_host import ConnectedHost

_TIMEOUT_S = 60.0
_DRIVER_FIELDS = ("driver_version", "compute_cap")
# The variables of another interpreter: a build has none of them.
_MISLEADING = ("LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV")
_EXPAND = "import os, sys; print(os.path.expanduser(os.path.expandvars(sys.argv[1])))"


def lock_environment(session: ConnectedHost, spec: Specification, gpus: int, say: Say) -> LockedEnvironment:
    """Lock a specification for a host; raise as `resolve.resolve_environment`."""
    facts, known = _facts(session, gpus)

    def ask() -> GpuCapabilities | None:
        found, scheduler = known_gpus(session, facts["root"]), scheduler_for(session.host)
        # A machine without a scheduler has no other GPUs than its own.
        if found or not scheduler.has_nodes:
            return found
        return None if ask_types(session.connection, scheduler) == [] else torch_build.UNKNOWN_GPUS

    spec = with_python(session, spec)
    try:
        return resolve.resolve_environment(spec, session.host, facts, known, CALLER, say, ask)
    except EnvironmentBuildError as error:
        error.host = session.host.name
        raise


def explain_stale_lock(session: ConnectedHost, spec: Specification, gpus: int) -> str:
    """Say why the existing lock does not fit the host; "" if it does."""
    facts, known = _facts(session, gpus)
    return resolve.why_stale(with_python(session, spec), session.host, facts, known, CALLER)


def with_python(session: ConnectedHost, spec: Specification) -> Specification:
    """Return a specification with the source of its Python, which clusterfn.yml may name, and the host's interpreter.

    Raises:
        EnvironmentBuildError: The host has no interpreter that fits.
        LockError: The project admits no Python.
    """
    if spec.project is None or spec.python.found:
        return spec
    source = spec.python if spec.python.kind else python_source.parse_source(session.host.making.python)
    if source.kind == python_source.HOST:
        argv = python_source.question(source, spec.project, CALLER)
        answer = session.connection.run(argv, unset=_MISLEADING, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
        printed, platform = answer.out.decode("utf-8", "replace"), session.connection.facts.platform
        found = python_source.choose(source, spec.project, platform, printed, session.host.name)
        source = replace(source, found=found)
    return replace(spec, python=source)


def _facts(session: ConnectedHost, gpus: int) -> tuple[dict[str, str], GpuCapabilities | None]:
    """Return what a lock for the host depends on, with the root of environments; and the GPUs that a job will get.

    The machine or an earlier job says which GPUs there are; else they are guessed. It is None for a job
    without GPUs.
    """
    host, root = session.connection.facts, environments_root(session)
    known = known_gpus(session, root) or torch_build.UNKNOWN_GPUS if gpus else None
    return {"platform": host.platform, "glibc": host.glibc, "root": root}, known


def environments_root(session: ConnectedHost) -> str:
    """Return the absolute folder of environments on the host; raise ConfigError if `env_root:` is no absolute path."""
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


def known_gpus(session: ConnectedHost, environments: str) -> GpuCapabilities | None:
    """Return what the machine or an earlier job says of the GPUs of a job; None if they say nothing."""
    host = session.host
    if not scheduler_for(host).has_nodes:
        question = nvidia_smi.query(_DRIVER_FIELDS)
        argv = ["/bin/sh", "-c", 'command -v "$1" >/dev/null && exec "$@"', "sh", *question]
        answer = session.connection.run(argv, timeout_s=20.0).result(_TIMEOUT_S)
        printed = answer.out.decode("utf-8", "replace")
        rows = nvidia_smi.read_table(printed, _DRIVER_FIELDS).rows
        if nvidia_smi.has_failed(answer.rc, printed) or not rows:
            return None
        listed, driver = [row["compute_cap"] for row in rows], rows[0]["driver_version"]
        source = f"nvidia-smi says on {host.name}"
    else:
        # Login nodes have no GPUs, so what the last job on the partition saw counts.
        name = scheduler_for(host).gpus().partition or layout.DEFAULT
        path = posixpath.join(environments, layout.OBSERVED_GPUS, f"{name}.json")
        text = remote_files.read_text(session.connection, path)
        try:
            seen: dict[str, Any] = json.loads(text) if text else {}
            listed, driver, source = list(seen["capabilities"]), seen["driver"], f"the last job saw on {seen['node']}"
        except (ValueError, KeyError, TypeError):
            return None
    found = {str(each).strip() for each in listed}
    return GpuCapabilities(driver, tuple(sorted(each for each in found if each.replace(".", "").isdigit())), source)
