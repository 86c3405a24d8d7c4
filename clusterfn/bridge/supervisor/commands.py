"""The supervisor's other commands: conclude or change a job, fail items of a group, ask about a root, open a shell.

job.sh calls `after`, the spooler and the agent the others; docs/reference/protocol.md says what each takes and prints.
"""

import json
import os
import sys

from ..layout import ATTEMPTS, CLAIM, OUTCOME, SPEC, TAG, WORK
from ..queue import launch, report, spooler
from ..queue.machine import demand_of
from ..queue.tickets import Queue
from . import conclude, expire, group, listing, publish
from .attempt import Attempt, read_events
from .environ import DescribedJob, expand_cwd, worker_environment
from .job import JobFolder, each_folder
from .verdict import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional


def _alter(folder: str) -> int:
    """Change what a waiting job asks for: its time, its memory, and its place among the jobs of its user.

    Read the change as JSON on stdin, and print `{"altered": bool}`: false if the job has begun, and keeps what it has.
    A scheduler with nodes has been told before. In clusterfn's own queue, the tickets of the job change as well.
    """
    change = json.loads(sys.stdin.read())
    job = JobFolder(folder)
    is_altered = not _has_begun(job)
    if is_altered:
        path = job.path(SPEC)
        with open(path, encoding="utf-8") as file:
            spec = dict(json.load(file))
        _apply(change, spec)
        publish.replace(path, json.dumps(spec, indent=1).encode())
        if not job.scheduler.has_nodes:
            waiting = Queue(job.root)
            for name in waiting.names():
                fields = waiting.fields(name) if name.partition(".")[0] == job.id else None
                if fields is not None:
                    asked, priority = dict(demand_of(spec)._asdict()), spec.get("priority", 0)
                    fields.update(asked=asked, resources=spec["resources"], priority=priority)
                    publish.replace(os.path.join(waiting.folder, name), json.dumps(fields).encode())
            launch.revive_spooler(job.root, spec["bridge"])
        # A job that has begun meanwhile may have read what it asked for before.
        is_altered = not _has_begun(job)
    sys.stdout.write(json.dumps({"altered": is_altered}) + "\n")
    return 0


def _apply(change: "dict[str, Any]", spec: "dict[str, Any]") -> None:
    asked, group = spec["resources"], spec.get("group")
    # The time of an element is for several items.
    if group and group.get("element_s") and asked.get("time_s") and "time_s" in change:
        group["element_s"] *= change["time_s"] / asked["time_s"]
    asked.update((name, change[name]) for name in ("time_s", "memory_bytes") if name in change)
    if "priority" in change:
        spec["priority"] = change["priority"]


def _has_begun(job: JobFolder) -> bool:
    """Whether the job, or an element of a group, has been claimed."""
    names = (CLAIM, ATTEMPTS)
    return any(os.path.exists(os.path.join(each, name)) for each in each_folder(job.folder) for name in names)


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
    from ..kernel import tunnel

    return tunnel.carry_to_port(int(port))


_WITHOUT_FILES = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"], "tcsh": ["-f"]}


def _start_shell(folder: str, facts: str) -> int:
    """Become a shell next to a job, or in an environment of the host: what `clusterfn shell` opens.

    A shell reads none of the user's own files: they would put other interpreters before that of the environment. This
    returns only if there can be no shell.

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


_ANY = 1 << 30
# A command -> its words for people, how many it takes at least and at most, and its function.
_COMMANDS: "dict[str, tuple[str, int, int, Callable[..., int]]]" = {
    "after": ("JOB STATUS", 2, 2, conclude.conclude_for_dead),
    "conclude": ("JOB", 1, 1, conclude.conclude_on_request),
    "end": ("JOB", 1, 1, conclude.end_stuck),
    "bury": ("ELEMENT", 1, 1, group.fail_unfinished_items),
    "withdraw": ("ROOT HOST", 2, 2, conclude.withdraw_jobs),
    "alter": ("JOB", 1, 1, _alter),
    "tunnel": ("PORT", 1, 1, _tunnel),
    "list": ("ROOT [AFTER]", 1, 2, _list),
    "gpus": ("ROOT", 1, 1, report.print_gpus),
    "users": ("", 0, 0, report.print_users),
    "clean": ("ROOT KEEP OLDER dry", 4, 4, expire.clean),
    "queue": ("ROOT", 1, 1, lambda root: report.print_queue(root, _bridge())),
    "top": ("ROOT NODES SECONDS LOOKS", 4, 4, _top),
    "sizes": ("ROOT [JOB...]", 1, _ANY, expire.print_sizes),
    "remove": ("ROOT dry [JOB...]", 2, _ANY, expire.remove_jobs),
    "shell": ("JOB FACTS", 2, 2, _start_shell),
    "spool": (
        "ROOT FD [JOB UNTIL FD]",
        2,
        _ANY,
        lambda root, fd, *first: spooler.run_spooler(root, int(fd), *first),
    ),
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
    say("usage: supervise.py %s | %s" % (_ELSEWHERE, known))
    return 2
