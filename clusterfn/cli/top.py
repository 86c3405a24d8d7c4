"""`clusterfn top HOST`: what clusterfn runs there, and for whom. Anybody may look, an administrator for one."""

from __future__ import annotations

import argparse
import json
from typing import Any

from clusterfn.bridge.job_states import PENDING
from clusterfn.calls import console
from clusterfn.cli import screen, target
from clusterfn.config.host_text import reading
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts.host_state import HostState, open_session

_HEAD = ("USER", "JOB", "STATE", "GPUS", "CORES", "MEMORY", "USED")
_MOST_FALSE = 5
_TIMEOUT_S = 60.0


def top(given: argparse.Namespace) -> int:
    """Print the jobs of all users on a host without a scheduler."""
    _, host, _ = target.host(given.host, "top")
    session = open_session(host)
    if session.scheduler_rules.has_nodes:
        raise ConfigError(
            f"{host.name} has a scheduler, which knows the jobs of all users", host=host.name,
            hint=f"log in and run {session.scheduler_rules.lists_all}; clusterfn's jobs are named FUNCTION.ID",
        )  # fmt: skip
    told = jobs_of_all_users(session)
    rows, false = told["jobs"], told.get("false", [])
    if given.json:
        print(screen.as_json({"host": host.name, **told}))
        return 0
    if rows:
        print(screen.table(_HEAD, [_row(each) for each in rows]))
        for each in [row for row in rows if row["state"] == PENDING][:1]:  # those that wait are in their order
            why = "has waited longest" if each.get("used") is None else "used the least of those who wait"
            console.tell(f"{each['user']} is next with {each['job']}, and {why}")
    else:
        console.tell(f"clusterfn runs nothing on {host.name}")
    for each in false[:_MOST_FALSE]:
        console.tell(f"{each['user']} holds a name of another user, which counts for nothing: {each['name']}")
    if len(false) > _MOST_FALSE:
        console.tell(f"{len(false) - _MOST_FALSE} more such names are held on {host.name}")
    return 0


def jobs_of_all_users(session: HostState) -> dict[str, Any]:
    """Ask the host for the jobs that run, or are next in their user's line, and for false names."""
    answer = session.supervise("users", session.host.lease).result(_TIMEOUT_S)
    if answer.rc != 0:
        said = answer.err.decode("utf-8", "replace").splitlines()[-5:]
        raise ClusterfnError("the host could not list the jobs of its users", host=session.host.name, evidence=said)
    with reading(session.host.name, "the jobs of its users"):
        told: dict[str, Any] = dict(json.loads(answer.out))
        _ = [_row(dict(each)) for each in told["jobs"]]
    return told


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    memory = f"{job['memory_mb']} MB" if job["memory_mb"] else "-"
    used = "-" if job.get("used") is None else screen.age(job["used"])
    return str(job["user"]), str(job["job"]), str(job["state"]), str(job["gpus"]), str(job["cores"]), memory, used
