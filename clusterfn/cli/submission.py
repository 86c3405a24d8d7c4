"""What `run` does alike for a function and for a script: the options that override @cluster, and --detach."""

from __future__ import annotations

import argparse
import time
from typing import Any

from clusterfn.api.decorator import ClusterFunction
from clusterfn.bridge.job_states import SHORT
from clusterfn.calls import console, job_display
from clusterfn.calls.job import Job
from clusterfn.cli import screen
from clusterfn.config.options import read_requeue
from clusterfn.errors import Cancelled, HostError, SubmitError, Unsatisfiable
from clusterfn.hosts import exit_flush, spoken_wait

_LOOK_S = 0.05
_OPTIONS = (
    "host", "cores", "memory", "gpus", "gpu_memory", "gpu_type", "time", "warn_before", "requeue", "environment",
    "resume", "outputs",
)  # fmt: skip


def call_options(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `@cluster` that the words override."""
    options = {name: value for name in _OPTIONS if (value := getattr(given, name, None)) not in (None, [])}
    return {**options, "requeue": read_requeue(given.requeue)} if "requeue" in options else options


def start_detached(
    called: ClusterFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, as_json: bool
) -> int:
    """Send the call, and print its id once the host has it."""
    job = send(called, args, kwargs)
    console.tell(f"{job.id} {job.name} on {job.host} keeps running; clusterfn attach {job.id[:SHORT]} follows it")
    print_sent(job, as_json)
    return 0


def send(called: ClusterFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[Any]:
    """Send the call, and return its job once the host has it."""
    job = called.submit(*args, **kwargs)
    with spoken_wait.speaking(lambda: f"{job.id[:SHORT]} is not submitted to {job.host} yet: it is {job.status_since}"):
        while (exit_flush.unanswered or job.waits_here) and not job.done():  # until the host has it, files included
            job_display.finish_submitting()
            time.sleep(_LOOK_S)
    if job.done() and isinstance(error := job.exception(), (HostError, SubmitError, Unsatisfiable, Cancelled)):
        raise error
    return job


def print_sent(job: Job[Any], as_json: bool) -> None:
    """Print the id of a job that was sent."""
    print(screen.as_json({"id": job.id, "name": job.name, "host": job.host}) if as_json else job.id)
