"""The supervisor's other commands: conclude a job, fail items of a group, ask about a root, open a shell.

job.sh calls `after`, the spooler and the agent the others; docs/reference/protocol.md says what each takes and prints.
"""

import json
import os
import sys

from ..layout import OUTCOME, TAG, WORK
from ..queue import launch, outlook, report, spooler
from . import conclude, expire, group, listing
from .attempt import Attempt, read_events
from .environ import DescribedJob, expand_cwd, worker_environment
from .job import JobFolder
from .verdict import log_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional


def _bridge() -> str:
    return os.path.dirname(os.path.abspath(sys.argv[0]))


def _list(root: str, after: str = "") -> int:
    launch.revive_spooler(root, _bridge())
    return listing.listing(root, after)


def _top(root: str, nodes: str, seconds: str, looks: str) -> int:
    # This import is late, because few people ask for it.
    from ..queue import overview

    return overview.print_looks(root, bool(nodes), float(seconds), int(looks))


def _tunnel(port: str) -> int:
    # This import is late, because no other command carries bytes.
    from ..kernel import far_end

    return far_end.carry_to_port(int(port))


# Starts the user's shell in a container, and where that has none the usual one.
_ENTER = """
import os, sys
for shell in (sys.argv[1:], ["/bin/sh", "-i"]):
    if os.access(shell[0], os.X_OK):
        os.execv(shell[0], shell)
"""
_WITHOUT_FILES = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"], "tcsh": ["-f"]}


def _start_shell(folder: str, facts: str) -> int:
    """Become a shell next to a job, or in an environment of the host: what `clusterfn shell` opens.

    A shell reads none of the user's own files: they would put other interpreters before that of the environment. This
    returns only if there can be no shell.

    Args:
        folder: Of the job; "" for an environment of the host.
        facts: Then its `python`, `activation` and `env`, as JSON.
    """
    begin: "list[str]" = []
    if folder:
        job = JobFolder(folder)
        name = job.id[:4]
        where, environ = _beside(job)
    else:
        spec = dict(json.loads(facts), resources={"cores": os.cpu_count() or 1, "gpus": 0}, root="", scheduler="bare")
        environ = worker_environment(DescribedJob("shell", "", spec), 0, os.environ, None)
        # These variables belong to a job, and there is none.
        del environ["CUDA_VISIBLE_DEVICES"], environ["CLUSTERFN_CHECKPOINT"]
        where = os.path.expanduser("~")
        name = os.uname().nodename
        # A script that runs the interpreter, perhaps in a container, has nothing that a shell outside finds.
        if spec["activation"]["prepend"]["PATH"] == []:
            begin = [spec["python"], "-I", "-c", _ENTER]
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
    argv = [*begin, shell, *_WITHOUT_FILES.get(os.path.basename(shell), []), "-i"]
    os.execve(argv[0], argv, environ)
    # This is never reached, because the shell has taken the place of this process.
    return 1


def _beside(job: JobFolder) -> "tuple[Optional[str], dict[str, str]]":
    """Return the folder and the variables of the job's newest attempt; no folder if there can be no shell."""
    numbers = job.attempts()
    if not numbers:
        log_line("job %s has not started: it has no folder yet" % job.id)
        return None, {}
    attempt = Attempt(job, numbers[-1])
    folder = expand_cwd(job.spec) or attempt.path(WORK)
    if os.path.exists(attempt.path(OUTCOME)):
        return folder, worker_environment(job, attempt.number, os.environ, [])
    starts = [event for event in read_events(attempt) if event["event"] == "starting"]
    started = starts[-1] if starts else {}
    if started.get("node") != job.node:
        log_line("job %s runs on %s, and this is %s" % (job.id, started.get("node"), job.node))
        return None, {}
    try:
        with open("/proc/%d/environ" % started["pid"], "rb") as file:
            pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    except OSError as error:
        log_line("the environment of job %s cannot be read: %s" % (job.id, error))
        return None, {}
    values: "dict[str, Optional[str]]" = {name: value for name, _, value in pairs}
    values.update(started.get("late") or {})
    return folder, {name: value for name, value in values.items() if value is not None}


_ANY = 1 << 30
# A command -> its words for people, how many it takes at least and at most, and its function.
_COMMANDS: "dict[str, tuple[str, int, int, Callable[..., int]]]" = {
    "after": ("JOB STATUS", 2, 2, conclude.conclude_for_dead),
    "conclude": ("JOB", 1, 1, conclude.conclude_on_request),
    "end": ("JOB", 1, 1, conclude.end_stuck),
    "bury": ("ELEMENT", 1, 1, group.fail_unfinished_items),
    "tunnel": ("PORT", 1, 1, _tunnel),
    "list": ("ROOT [AFTER]", 1, 2, _list),
    "gpus": ("ROOT", 1, 1, report.print_gpus),
    "outlook": ("ROOT", 1, 1, outlook.print_outlook),
    "clean": ("ROOT KEEP OLDER dry", 4, 4, expire.clean),
    "queue": ("ROOT", 1, 1, lambda root: report.print_queue(root, _bridge())),
    "top": ("ROOT NODES SECONDS LOOKS", 4, 4, _top),
    "remove": ("ROOT dry [JOB...]", 2, _ANY, expire.remove_jobs),
    "shell": ("JOB FACTS", 2, 2, _start_shell),
    "spool": ("ROOT FD", 2, 2, lambda root, fd: spooler.run_spooler(root, int(fd))),
}
# What `program` runs itself, as jobs wait for it.
_ELSEWHERE = "run JOB [STATUS] | node JOB ATTEMPT [ITEM...]"


def run_command(argv: "list[str]") -> int:
    """Run one command; return the exit code of the process."""
    words = argv[1:]
    _, least, most, function = _COMMANDS.get("".join(argv[:1]), ("", _ANY, 0, len))
    if least <= len(words) <= most:
        return function(*words)
    known = " | ".join("%s %s" % (name, _COMMANDS[name][0]) for name in _COMMANDS)
    log_line("usage: supervise.py %s | %s" % (_ELSEWHERE, known))
    return 2
