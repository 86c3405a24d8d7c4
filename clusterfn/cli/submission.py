"""What `run` does alike for a function and for a command: the options that override @cluster, --detach, and advice."""

from __future__ import annotations

import argparse
import os
import re
import time
from typing import Any

from clusterfn.api.command import ONE_TASK
from clusterfn.api.decorator import ClusterFunction
from clusterfn.bridge.job_states import SHORT
from clusterfn.calls import leaving
from clusterfn.calls.group import JobGroup
from clusterfn.calls.job import Job, run_of
from clusterfn.config.option_checks import read_requeue
from clusterfn.display import console
from clusterfn.errors import Cancelled, CommandFailed, ConfigError, HostError, SubmitError, Unsatisfiable
from clusterfn.hosts import exit_flush, loop
from clusterfn.packing.project import explain
from clusterfn.packing.project.model import Project

_LOOK_S = 0.05
OPTIONS = (
    "host", "cores", "memory", "gpus", "gpu_memory", "gpu_type", "time", "warn_before", "requeue",
    "environment", "binds", "resume", "outputs", "nodes", "tasks_per_node", "cwd", "name", "retries", "secrets", "env",
    "slurm", "notify",
)  # fmt: skip


def call_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `@cluster` that the words override."""
    # An option that was not given is None, or an empty list where it may be repeated.
    options = {name: value for name in OPTIONS if (value := getattr(args, name, None)) not in (None, [])}
    if "requeue" in options:
        options["requeue"] = read_requeue(args.requeue)
    for name in ("env", "slurm"):
        if name in options:
            options[name] = dict(_pair(name, word) for word in options[name])
    return options


def _pair(option: str, word: str) -> tuple[str, Any]:
    """Read NAME=VALUE; of sbatch's options some have no value; raise ConfigError if a variable has none."""
    name, equals, value = word.partition("=")
    if not equals and option == "env":
        hint = f"write --env {name}=VALUE; to pass on your own variable, write --secret {name}"
        raise ConfigError(f"--env {word} has no value", hint=hint)
    return name, value if equals else True


def start_detached(
    called: ClusterFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, as_json: bool
) -> int:
    """Send the call, and print its id once the host has it."""
    job = send(called, args, kwargs)
    # The line below already says that the job keeps running, so print no such line at the exit.
    leaving.forget_going(run_of(job))
    return leave(job, as_json)


def leave(job: Job[Any] | JobGroup[Any, Any], as_json: bool) -> int:
    """Say that a job keeps running, and print its id."""
    console.tell(f"{job.id} {job.name} on {job.host} keeps running; clusterfn attach {job.id[:SHORT]} follows it")
    print(console.as_json({"id": job.id, "name": job.name, "host": job.host}) if as_json else job.id)
    return 0


def send(called: ClusterFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[Any]:
    """Send the call, and return its job once the host has it."""
    job = called.submit(*args, **kwargs)
    await_sent(job)
    if job.done() and isinstance(error := job.exception(), (HostError, SubmitError, Unsatisfiable, Cancelled)):
        raise error
    return job


def await_sent(job: Job[Any] | JobGroup[Any, Any]) -> None:
    """Wait until the host has a job, or a map."""
    one = None if isinstance(job, JobGroup) else job
    title = f"{job.id[:SHORT]} is not submitted to {job.host} yet"
    with loop.speaking(lambda: f"{title}: it is {one.status_since if one else job.status}"):
        # `waits_here` means that the host lacks something that must be sent first.
        while not job.done() and (exit_flush.has_unanswered() or (one and run_of(one).waits_here)):
            leaving.finish_submitting()
            time.sleep(_LOOK_S)


# The exit status of argparse, click and getopt for wrong options.
_WRONG_USAGE = 2
_ADVICE = (
    (re.compile(r"\b(?:conda|mamba|micromamba): (?:command )?not found|[Cc]onda init"),
     "the command already runs in the environment of the host; for another: --environment conda:NAME"),
    (re.compile(r"\bmodule: (?:command )?not found"),
     "the host loads modules before the command: modules: [NAME] below the host in clusterfn.yml"),
    (re.compile(r"\bsrun: (?:command )?not found"), f"the host has no srun; {ONE_TASK}"),
    (re.compile(r"\bcd: "),
     "a script runs in a copy of its project: leave out that cd; --cwd names a folder of the host instead"),
    (re.compile(r"Requested operation is presently disabled"),
     "SLURM may not start this job again: allow it with --requeue preempted"),
    (re.compile(r"not a git repository|InvalidGitRepositoryError"),
     "the copy of the project has no .git: $CLUSTERFN_GIT_COMMIT names its commit"),
)  # fmt: skip
_UNSET = re.compile(r"KeyError: '(\w+)'$|\b(\w+): (?:unbound variable|parameter not set)")


def advise(error: CommandFailed, project: Project | None, args: argparse.Namespace) -> str | None:
    """Return what to do about a failed command; None if nothing shows it."""
    after = args.script_words if args.command_words is None else args.command_words
    options = {f"--{name.replace('_', '-')}" for name in (*OPTIONS, "detach", "partition", "map")}
    stray = next((word for word in after or () if word.partition("=")[0] in options), None)
    if error.exit_status == _WRONG_USAGE and stray:
        place = "the script" if args.command_words is None else "--"
        return f"{stray} went to the command: options of clusterfn come before {place}"
    lines = error.evidence or ()
    if project is not None and (said := explain.of_command(lines, project)):
        return said
    # Scripts go on after `module load` and `conda activate` have failed, so the last line counts.
    for line in reversed(lines):
        if (unset := _UNSET.search(line)) and (name := unset[1] or unset[2]) in os.environ:
            return f'{name} is set here, and not in the job: --env {name}="${name}", or --secret {name}'
        if what := next((what for pattern, what in _ADVICE if pattern.search(line)), None):
            return what
    return None
