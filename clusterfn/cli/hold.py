"""`clusterfn hold` and `release`: one allocation of SLURM in which the calls of all your programs run.

A job holds it, like any other: `clusterfn jobs` lists it, and `clusterfn cancel` ends it with all that runs in it.
"""

from __future__ import annotations

import argparse
import json
import math
import posixpath
import sys
import time
from typing import Any

from clusterfn.api.decorator import ClusterFunction, cluster
from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SHORT
from clusterfn.bridge.supervisor.text import counted, in_one_line
from clusterfn.calls import attach, job_display
from clusterfn.calls.call import resources_of
from clusterfn.calls.job import Job, entry_of
from clusterfn.cli import screen, target
from clusterfn.cli.submission import call_options, print_sent, send
from clusterfn.config.host_text import reading
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Host
from clusterfn.config.units import parse_time
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import loop, remote_files
from clusterfn.hosts.host_state import HostState
from clusterfn.scheduler.base import Evidence

# By this name, `release` finds a job that still waits to hold an allocation.
_NAME = "hold"
_LOOK_S = 0.2
# The job that holds an allocation checks each second whether it was released.
_NOTICED_S = 10.0
_TIMEOUT_S = 60.0
_MB = 2**20


def hold(args: argparse.Namespace) -> int:
    """Submit the job that holds an allocation; return once the host has it, or with --wait once calls can use it."""
    session, host = _of(args, "hold")
    record = _record(session)
    if record is not None:
        raise ConfigError(
            f"{host.name} already holds {_described(record)}", host=host.name,
            hint=f"clusterfn release {host.name} ends that one; then hold again",
        )  # fmt: skip
    chosen = {**call_options(args), "host": host.name, "name": _NAME}
    resources = resources_of(parse_options(chosen), host, session.scheduler_rules)
    facts = {
        "cores": resources.cores, "gpus": resources.gpus, "gpu_type": resources.gpu_type, "time_s": resources.time_s,
        "memory_mb": math.ceil(resources.memory_bytes / _MB) if resources.memory_bytes is not None else None,
        "idle_s": parse_time(args.idle, "idle") if args.idle else 0,
    }  # fmt: skip
    words = session.bridge.words(layout.SUPERVISE, "hold", _folder(session), json.dumps(facts))
    held: ClusterFunction[Any, Any] = cluster(_hold_until_released).with_options(**chosen)
    job = send(held, (words,), {})
    job_display.remember_going(entry_of(job), f"calls use it once it runs; clusterfn release {host.name} ends it")
    if args.wait:
        record = _await_record(session, job)
        job_display.remember_going(entry_of(job), f"calls use it; clusterfn release {host.name} ends it")
        console.tell(f"{host.name} holds {_described(record)}")
    print_sent(job, args.json)
    return 0


def _await_record(session: HostState, job: Job[Any]) -> dict[str, Any]:
    """Wait until the job that holds an allocation runs, and say why it waits.

    Raises:
        ClusterfnError: It has ended.
    """
    last_status = ""
    # Wait for the record of this very job. Two jobs may try to hold at the same time, and the second one fails.
    while (record := _read_record(session)) is None or record["job"] != job.id:
        if job.done():
            job.result(0)
            raise ClusterfnError("the job that holds the allocation has ended", host=job.host, job=job.id)
        if job.reason and job.status != last_status:
            last_status = job.status
            console.tell(f"{job.id[:SHORT]} {last_status}")
        time.sleep(_LOOK_S)
    return record


def release(args: argparse.Namespace) -> int:
    """Ask what is held to end, and wait until it takes no more calls; return 1 if nothing is held."""
    session, host = _of(args, "release")
    record = _record(session)
    if record is not None:
        place = posixpath.join(_folder(session), layout.HOLD_RELEASE)
        session.connection.put(place, b"", sync=False).result(_TIMEOUT_S)
        until = time.monotonic() + _NOTICED_S
        held = _described(record)
        with loop.speaking(lambda: f"waiting for {host.name} to release {held}"):
            # The job that holds the allocation removes the folder with this file once it takes no more calls.
            while time.monotonic() < until and session.connection.have([place]).result(_TIMEOUT_S) == [True]:
                time.sleep(_LOOK_S)
    if args.json:
        print(screen.as_json({"host": host.name, "released": record is not None, "id": (record or {}).get("job")}))
    elif record is None:
        waiting = [job.id[:SHORT] for job in attach.jobs(host.name) if job.name == _NAME and job.state == PENDING]
        withdraw = f"; clusterfn cancel {' '.join(waiting)} withdraws what has not begun" if waiting else ""
        print(f"clusterfn: nothing is held on {host.name}{withdraw}", file=sys.stderr)
    else:
        print(f"{host.name}: released {_described(record)}; jobs that run in it end first")
    return 0 if record is not None else 1


def _hold_until_released(words: list[str]) -> None:
    """Run the supervisor's `hold` in the job."""
    import subprocess

    ended = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        reason = ended.stderr.strip() or f"it ended with status {ended.returncode}"
        raise RuntimeError(f"what holds the allocation: {reason}")


# With this name the function is sent by value: a job does not get the modules of the command line.
_hold_until_released.__module__ = "__main__"


def _of(args: argparse.Namespace, command: str) -> tuple[HostState, Host]:
    """Return the state of the host.

    Raises:
        ConfigError: It has no SLURM.
    """
    session = target.host_state(args.host, command)
    host = session.host
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
    record = _read_record(session)
    if record is None:
        return None
    with reading(session.host.name, layout.HOLD_RECORD):
        number, _ = str(record["id"]), _described(record)
    scheduler = session.scheduler
    answer = session.connection.run(scheduler.evidence_command(number), unset=scheduler.unset).result(_TIMEOUT_S)
    output = (answer.out + answer.err).decode("utf-8", "replace")
    # A node that dies does not remove the record, so only the scheduler knows whether the allocation still exists.
    return None if scheduler.explain(Evidence(output, "", number, str(record["job"]))) else record


def _read_record(session: HostState) -> dict[str, Any] | None:
    (data,) = remote_files.read_each(session.connection, [posixpath.join(_folder(session), layout.HOLD_RECORD)])
    try:
        record = json.loads(data or b"null")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _described(record: dict[str, Any]) -> str:
    """Say what a record is of: "4 cores and 1 GPU of n1 (job 7f3a)"."""
    cores, gpus = record["cores"], record["gpus"]
    gpu = f" and {counted(gpus, 'GPU')}" if gpus else ""
    of = f"of {record['node']} (job {str(record['job'])[:SHORT]})"
    return in_one_line(f"{counted(cores, 'core')}{gpu} {of}")
