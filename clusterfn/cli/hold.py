"""`clusterfn hold` and `release`: one allocation of SLURM in which the calls of all your programs run.

A job holds it, like any other: `clusterfn jobs` lists it, and `clusterfn cancel` ends it with all that runs in it.
"""

from __future__ import annotations

import argparse
import json
import math
import posixpath
import sys
from typing import Any

from clusterfn.api.decorator import ClusterFunction, cluster
from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.calls.call import resources_of
from clusterfn.cli import screen, target
from clusterfn.cli.submission import call_options, start_detached
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Host
from clusterfn.config.units import parse_time
from clusterfn.errors import ConfigError
from clusterfn.hosts import remote_files
from clusterfn.hosts.host_state import HostState, open_session
from clusterfn.scheduler.base import Evidence

_TIMEOUT_S = 60.0
_MB = 2**20


def hold(given: argparse.Namespace) -> int:
    """Submit the job that holds an allocation; return once the host has it."""
    session, host = _of(given, "hold")
    found = _record(session)
    if found is not None:
        raise ConfigError(
            f"{host.name} already holds {_described(found)}", host=host.name,
            hint=f"clusterfn release {host.name} ends that one; then hold again",
        )  # fmt: skip
    chosen = {**call_options(given), "host": host.name, "name": "hold"}
    resources = resources_of(parse_options(chosen), host, session.scheduler_rules)
    facts = {
        "cores": resources.cores, "gpus": resources.gpus, "gpu_type": resources.gpu_type, "time_s": resources.time_s,
        "memory_mb": math.ceil(resources.memory_bytes / _MB) if resources.memory_bytes is not None else None,
        "idle_s": parse_time(given.idle, "idle") if given.idle else 0,
    }  # fmt: skip
    words = [session.connection.facts.python, "-I", "-S", posixpath.join(session.bridge, layout.SUPERVISE)]
    words += ["hold", _folder(session), json.dumps(facts)]
    held: ClusterFunction[Any, Any] = cluster(_hold_until_released).with_options(**chosen)
    return start_detached(held, (words,), {}, as_json=given.json)


def release(given: argparse.Namespace) -> int:
    """Ask what is held to end; return 1 if nothing is."""
    session, host = _of(given, "release")
    found = _record(session)
    if found is not None:
        place = posixpath.join(_folder(session), layout.HOLD_RELEASE)
        session.connection.put(place, b"", sync=False).result(_TIMEOUT_S)
    if given.json:
        print(screen.as_json({"host": host.name, "released": found is not None, "id": (found or {}).get("job")}))
    elif found is None:
        print(
            f"clusterfn: nothing is held on {host.name}; if a hold still waits in the queue: clusterfn cancel ID",
            file=sys.stderr,
        )
    else:
        print(f"{host.name}: released {_described(found)}; jobs that run in it end first")
    return 0 if found is not None else 1


def _hold_until_released(words: list[str]) -> None:
    """Run the supervisor's `hold` in the job."""
    import subprocess

    status = subprocess.call(words)
    if status:
        raise RuntimeError(f"what holds the allocation ended with status {status}")


_hold_until_released.__module__ = "__main__"  # travels as itself: a job has no command line


def _of(given: argparse.Namespace, command: str) -> tuple[HostState, Host]:
    """Return the state of the host.

    Raises:
        ConfigError: It has no SLURM.
    """
    _, host, _ = target.host(given.host, command)
    session = open_session(host)
    if not session.scheduler_rules.holds:
        raise ConfigError(
            f"{host.name} has no SLURM, so there is no allocation to {command}", host=host.name,
            evidence=[f"scheduler: {host.scheduler} ({host.source})"],
            hint=f'keep its GPUs and an interpreter for many calls: clusterfn.Session("{host.name}", gpus=1)',
        )  # fmt: skip
    return session, host


def _folder(session: HostState) -> str:
    return posixpath.join(session.root, layout.HOLD)


def _record(session: HostState) -> dict[str, Any] | None:
    """Return what is held there; None if nothing is, or the scheduler no longer knows it."""
    (data,) = remote_files.read_each(session.connection, [posixpath.join(_folder(session), layout.HOLD_RECORD)])
    try:
        found = json.loads(data or b"null")
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    scheduler, number = session.scheduler, str(found["id"])
    asked = session.connection.run(scheduler.evidence_command(number), unset=scheduler.unset).result(_TIMEOUT_S)
    said = (asked.out + asked.err).decode("utf-8", "replace")
    return None if scheduler.explain(Evidence(said, "", number)) else found  # its node may have died


def _described(record: dict[str, Any]) -> str:
    """Say what a record is of: "4 cores and 1 GPU of n1 (job 7f3a)"."""
    cores, gpus = record["cores"], record["gpus"]
    gpu = f" and {gpus} GPU{'s' if gpus != 1 else ''}" if gpus else ""
    return f"{cores} core{'s' if cores != 1 else ''}{gpu} of {record['node']} (job {str(record['job'])[:SHORT]})"
