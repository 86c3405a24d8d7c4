"""Run a command in a job: in a copy of its project, with what its launcher needs, to an end that says what failed.

The command is a child of the worker, in its process tree: what ends the job ends it. It has the job's stdout and
stderr, so its output is live. Of several nodes each runs it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import IO, Any

from ..layout import COMMAND, INDEX_VARIABLE, RESULT, STDERR, STDOUT
from ..schedulers.registry import scheduler_of_job
from ..supervisor import process_tree, publish
from . import warning
from .command_line import (
    WRITE_PLAIN,
    NotPlain,
    fill,
    fill_command,
    interpreter_of,
    launcher_variables,
    to_warn,
    variables_of_sbatch,
    with_nodes,
)
from .execute import CallRejected
from .payload import FOLDERS

# While this file exists, the copy of the project is complete.
_READY = ".clusterfn-project"
_COPY_S = 600.0
_LOOK_S = 0.2
_SIGNALLED = 128
# A shell reports these errors by these statuses.
_NOT_STARTED = {errno.ENOENT: 127, errno.EACCES: 126, errno.ENOEXEC: 126}
_SHELLS = ("bash", "sh")
_SUBMITS = re.compile(rb"\b(?:sbatch|submitit)\b")
_SCRIPT = """#!%s
import sys
from %s import %s
if __name__ == "__main__":
    sys.exit(%s())
"""


def run(command: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Run a command; return what it left in the file that `result` names, or None.

    Args:
        command: What `clusterfn.api.command` has made: `words` or the `line` for a shell, how it is `shown`, the path
            of its `project`, its `stdin`, the name of the file with its `result`, further `env` (None takes a variable
            away), whether the `first` node alone runs it, the `signal` that warns it, whether that is for the shell
            `alone`, its `logs`, and of its project the `roots` of imports and the console `scripts`.
        values: What takes the places `{name}` in it.

    Raises:
        CallRejected: It could not be started, or has failed.
        TimeAlmostUp: The warning before the end of the job has ended it.
    """
    rank, tasks = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    if command.get("first") and rank:
        return None
    env = {**os.environ, **launcher_variables(os.environ), "PYTHONUNBUFFERED": "1"}
    # sbatch sets these variables for its script.
    if command.get("first"):
        env = {**variables_of_sbatch(os.environ), **env, "SLURM_SUBMIT_DIR": os.getcwd()}
    for name, text in (command.get("env") or {}).items():
        env.pop(name, None)
        if text is not None:
            env[name] = fill(text, values)
    folders = [os.path.abspath(root) for root in command.get("roots") or ()] + json.loads(env.get(FOLDERS) or "[]")
    if folders:
        env["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [env.get("PYTHONPATH")])])
    copied = _copied(command, rank, 1 if command.get("first") else tasks)
    with copied, _made(command.get("scripts"), env), _named_logs(command.get("logs") or (), env):
        warn_by = getattr(signal, command.get("signal") or "SIGTERM", signal.SIGTERM)
        try:
            argv = argv_of(command, values)
        except NotPlain as error:
            raise CallRejected(COMMAND, str(error), WRITE_PLAIN, code=_NOT_STARTED[errno.EACCES]) from error
        with open(command.get("stdin") or os.devnull, "rb") as stdin:
            _wait_for(argv, env, stdin, warn_by, shown(command, values), bool(command.get("alone")))
        return _result(command.get("result"), shown(command, values))


def shown(command: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Return the command as people read it."""
    return fill(command["shown"], values)


def argv_of(command: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Return what to start: a script by its interpreter, a line by a shell."""
    if command["line"]:
        shell = next((found for name in _SHELLS if (found := shutil.which(name))), "/bin/sh")
        # A program that fails at the beginning of a pipe would be hidden by the last one.
        pipes = ["-o", "pipefail"] if os.path.basename(shell) == "bash" else []
        return [shell, *pipes, "-c", *fill_command(command, values)]
    first, *rest = words = fill_command(command, values)
    if (os.sep in first or first.endswith(".py")) and os.path.isfile(first):
        if first.endswith(".py"):
            return [sys.executable, *words]
        return [*interpreter_of(first), *words]
    return with_nodes([first, *rest], os.environ)


# The project


@contextlib.contextmanager
def _copied(command: Mapping[str, Any], rank: int, tasks: int) -> Iterator[None]:
    """Copy the project into the working folder; afterwards only what the command has made or changed stays there.

    Several tasks share the folder. The first one copies, and removes the copy once the others have ended, unless jobs
    that the command has submitted need it.
    """
    if command["project"] is None:
        yield
        return
    if rank:
        _await_names({_READY}, _COPY_S, "the first node has not copied the project")
        yield
        _make_file("%s-%d" % (_READY, rank))
        return
    sent = _copy(command["project"])
    others = {"%s-%d" % (_READY, other) for other in range(1, tasks)}
    if others:
        _make_file(_READY)
    try:
        yield
        # If another task fails, this process is ended with the job.
        _await_names(others)
    finally:
        for path in (_READY, *others) if others else ():
            with contextlib.suppress(OSError):
                os.unlink(path)
        kept_for = _jobs_submitted_here(command)
        if kept_for:
            sys.stderr.write("clusterfn: the project's files stay in %s for %s\n" % (os.getcwd(), kept_for))
            sent = {}
        for folder in {os.path.dirname(path) for path in sent if path.endswith(".py")}:
            shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
        for path, before in sent.items():
            with contextlib.suppress(OSError):
                if _state(path) == before:
                    os.unlink(path)


def _jobs_submitted_here(command: Mapping[str, Any]) -> str:
    """Describe the jobs that a command has submitted in its folder; "" for none, as where nothing in it says sbatch."""
    scheduler = scheduler_of_job(os.environ)
    # To read a pipe or a device may take for ever.
    files = filter(os.path.isfile, command["words"])
    texts = [os.fsencode(command["line"]), *(publish.last_bytes(file, 1 << 20) for file in files)]
    if scheduler is None or not any(_SUBMITS.search(text) for text in texts):
        return ""
    numbers = scheduler.jobs_in(os.getcwd())
    return "jobs that may need them" if numbers is None else ", ".join("job %s" % number for number in numbers)


@contextlib.contextmanager
def _named_logs(patterns: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """Let the script find its own output by the names that sbatch would give it, to move or read it."""
    values = {
        "%": "%",
        "j": env.get("SLURM_JOB_ID"),
        "A": env.get("SLURM_ARRAY_JOB_ID") or env.get("SLURM_JOB_ID"),
        "a": env.get("SLURM_ARRAY_TASK_ID"),
        "x": env.get("SLURM_JOB_NAME"),
        "N": env.get("SLURMD_NODENAME"),
        "u": env.get("USER"),
    }
    logs = {}
    for pattern, log in zip(patterns, (STDOUT, STDERR)):
        path = re.sub(r"%\d*(.)", lambda sign: values.get(sign[1]) or sign[0], pattern)
        # An item works in a folder of its own, and its log is that of its element.
        above = os.path.abspath(os.path.join(os.pardir, os.pardir if INDEX_VARIABLE in env else os.curdir, log))
        # Another link to the same file can be moved, copied and fetched while the job still writes to it.
        if not os.path.isabs(path) and os.pardir not in path.split(os.sep):
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
                os.link(above, path)
                logs[path] = above
    try:
        yield
    finally:
        for path, log in logs.items():
            with contextlib.suppress(OSError):
                if os.path.samefile(path, log):
                    os.unlink(path)


@contextlib.contextmanager
def _made(scripts: Mapping[str, str] | None, env: dict[str, str]) -> Iterator[None]:
    """Make the console scripts of the project, as pip does, in a folder of PATH."""
    if not scripts:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="clusterfn-scripts-") as folder:
        # Linux takes no longer first line.
        python = sys.executable if len(sys.executable) < 126 and " " not in sys.executable else "/usr/bin/env python"
        for name, called in scripts.items():
            module, _, function = called.partition(":")
            path = os.path.join(folder, os.path.basename(name))
            with open(path, "w", encoding="utf-8") as file:
                file.write(_SCRIPT % (python, module, function.partition(".")[0], function))
            os.chmod(path, 0o700)
        env["PATH"] = folder + os.pathsep + env.get("PATH", os.defpath)
        yield


def _make_file(name: str) -> None:
    with open(name, "w"):
        pass


def _await_names(names: set[str], most_s: float = float("inf"), why_not: str = "") -> None:
    until = time.monotonic() + most_s
    # NFS remembers for a while that a file was missing, but lists it.
    while not names.issubset(os.listdir()):
        if time.monotonic() > until:
            raise CallRejected(COMMAND, why_not, "look at the file system of root: there", code=1)
        time.sleep(_LOOK_S)


def _copy(project: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Copy a folder into this one, with its folders and links; return the state of each file and link."""
    sent = {}
    for folder, folders, names in os.walk(project):
        os.makedirs(os.path.relpath(folder, project), exist_ok=True)
        for source in (os.path.join(folder, name) for name in names + folders):
            path = os.path.relpath(source, project)
            if os.path.islink(source):
                target = os.readlink(source)
                if os.path.isabs(target) and not os.path.exists(target):
                    sys.stderr.write("clusterfn: %s is a link to %s, which is not on this host\n" % (path, target))
                    continue
                os.symlink(target, path)
            elif not os.path.isdir(source):
                shutil.copyfile(source, path)
                os.chmod(path, 0o700 if os.access(source, os.X_OK) else 0o600)
            else:
                continue
            sent[path] = _state(path)
    return sent


def _state(path: str) -> tuple[int, int]:
    facts = os.lstat(path)
    return facts.st_mtime_ns, facts.st_size


# Its process


def _wait_for(
    argv: Sequence[str], env: Mapping[str, str], stdin: IO[bytes], warn_by: int, name: str, alone: bool
) -> None:
    """Run it to its end; the warning before the end of the job reaches it as a signal: `alone`, or with what it runs.

    Raises:
        CallRejected: It could not be started, or has failed.
        TimeAlmostUp: The warning has ended it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        process = subprocess.Popen(argv, env=env, stdin=stdin)
    except OSError as error:
        raise _not_started(argv[0], error, env.get("PATH")) from error
    ending = _ending()
    warned = []

    def warn() -> None:
        warned.append(True)
        if process.poll() is None:
            process_tree.send_signal([process.pid] if alone else to_warn(process.pid, warn_by), warn_by)

    if ending is not None:
        ending.on_warning(warn)
    status = process.wait()
    if ending is not None and warned and status in (-warn_by, _SIGNALLED + warn_by):
        raise ending.TimeAlmostUp("the command has ended because of the warning")
    if status:
        raise _failed(name, status)


def _ending() -> ModuleType | None:
    try:
        return warning.load_ending()
    except ImportError:
        # The clusterfn in the environment knows no warnings, and with warn_before= no call begins.
        return None


def _not_started(program: str, error: OSError, path: str | None) -> CallRejected:
    number = error.errno or 0
    if number == errno.EACCES and os.sep not in program and shutil.which(program, os.F_OK, path) is None:
        # It is nowhere, and a folder of PATH cannot be searched.
        number = errno.ENOENT
    reason = "there is no such program" if number == errno.ENOENT else os.strerror(number)
    hint = "add the package that has it to the environment, or write its path on the host"
    if os.path.isfile(program) and number == errno.ENOENT:
        reason, hint = "the interpreter in its first line is not there", "correct the line that begins with #!"
    elif number != errno.ENOENT:
        hint = "look at its first line, its mode, and the file system on which it is"
    message = "%s cannot be started: %s" % (program, reason)
    return CallRejected(COMMAND, message, hint, code=_NOT_STARTED.get(number, 1))


def _failed(name: str, status: int) -> CallRejected:
    if status > 0:
        return CallRejected(COMMAND, "%s: exit status %d" % (name, status), code=status)
    try:
        number = signal.Signals(-status).name
    except ValueError:
        # A real-time signal has no name.
        number = "signal %d" % -status
    return CallRejected(COMMAND, "%s: ended by %s" % (name, number), code=_SIGNALLED - status, signal=number)


def _result(path: str | None, name: str) -> Any:
    """Return the content of the JSON file that the command has left."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        message = "%s returned, but its result cannot be read from %s: %s" % (name, path, error)
        raise CallRejected(RESULT, message, "let it write JSON to %s in its working folder" % path) from error
