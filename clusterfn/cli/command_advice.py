"""Say what to do about a command that failed in a job, by its exit status and the end of its stderr."""

from __future__ import annotations

import argparse
import os
import re

from clusterfn.api.command import ONE_TASK
from clusterfn.cli.submission import OPTIONS
from clusterfn.errors import CommandFailed
from clusterfn.packing.project import explain
from clusterfn.packing.project.model import Project

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
