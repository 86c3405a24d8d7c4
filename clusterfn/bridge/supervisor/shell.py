"""Become a shell next to a job, or in an environment of the host: what `clusterfn shell` opens.

A shell reads none of the user's own files: they would put other interpreters before that of the environment.
"""

import json
import os
import sys

from ..layout import OUTCOME, TAG, WORK
from .attempt import Attempt, read_events
from .environ import DescribedJob, expand_cwd, worker_environment
from .job import JobFolder
from .verdict import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_WITHOUT_FILES = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"], "tcsh": ["-f"]}


def start_shell(folder: str, facts: str) -> int:
    """Replace this process by a shell; return only if that is not possible.

    Args:
        folder: Of the job; "" for an environment of the host.
        facts: Then its `python`, `activation` and `env`, as JSON.
    """
    if folder:
        job = JobFolder(folder)
        name = job.id[:4]
        where, environ = _beside(job)
    else:
        spec = dict(json.loads(facts), resources={"cores": os.cpu_count() or 1, "gpus": 0}, root="", scheduler="bare")
        environ = worker_environment(DescribedJob("shell", "", spec), 0, os.environ, None)
        # These variables belong to a job, and there is none.
        del environ["CUDA_VISIBLE_DEVICES"], environ["CLUSTERFN_CHECKPOINT"]
        where, name = os.path.expanduser("~"), os.uname().nodename
    if where is None:
        return 1
    for variable in ("TERM", "LANG", "LC_ALL", "HOME", "USER", "LOGNAME"):
        if variable in os.environ:
            environ[variable] = os.environ[variable]
    # With the tag, the end of the job would end the shell.
    environ.pop(TAG, None)
    shell = os.environ.get("SHELL", "")
    shell = shell if os.access(shell, os.X_OK) else "/bin/sh"
    environ["PS1"] = "(%s) $ " % name
    os.chdir(where)
    sys.stdout.flush()
    os.execve(shell, [shell, *_WITHOUT_FILES.get(os.path.basename(shell), []), "-i"], environ)
    # This is never reached, because the shell has taken the place of this process.
    return 1


def _beside(job: JobFolder) -> "tuple[Optional[str], dict[str, str]]":
    """Return the folder and the variables of the job's newest attempt; no folder if there can be no shell."""
    numbers = job.attempts()
    if not numbers:
        say("job %s has not started: it has no folder yet" % job.id)
        return None, {}
    attempt = Attempt(job, numbers[-1])
    folder = expand_cwd(job.spec) or attempt.path(WORK)
    if os.path.exists(attempt.path(OUTCOME)):
        return folder, worker_environment(job, attempt.number, os.environ, [])
    starts = [event for event in read_events(attempt) if event["event"] == "starting"]
    started = starts[-1] if starts else {}
    if started.get("node") != job.node:
        say("job %s runs on %s, and this is %s" % (job.id, started.get("node"), job.node))
        return None, {}
    try:
        with open("/proc/%d/environ" % started["pid"], "rb") as file:
            pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    except OSError as error:
        say("the environment of job %s cannot be read: %s" % (job.id, error))
        return None, {}
    values: "dict[str, Optional[str]]" = {name: value for name, _, value in pairs}
    values.update(started.get("late") or {})
    return folder, {name: value for name, value in values.items() if value is not None}
