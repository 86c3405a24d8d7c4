"""Run programs with a time limit, in a linked environment its scripts and its Python; and end with them.

SIGTERM or Ctrl-C asks the builder to end. Long steps look whether it was asked, and release their locks on the way.
Programs carry a variable of the builder, and a process of its own waits for the builder's end. So no pip outlives the
builder, even if that is killed.

Scripts of packages that conda would run as it links them are not run, as in pixi. Activation scripts
(`etc/conda/activate.d/*.sh`) run only here: the variables that they change are written into READY, so that no job has
to run them.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time

from ..layout import SHELLS_OWN
from ..supervisor import process_tree
from ..supervisor.limits import Stall
from ..supervisor.text import format_duration, last_lines, native
from .progress import BuildFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from .plan import BuildPlan

_LEAKS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "PYTHON", "PIP_", "CONDA_", "MAMBA_", "_CE_")
_SHELL = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
_TURN_S = 0.1
_MOST_OUTPUT = 1000000
_BASE_TIMEOUT_S = 60.0
_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
_SEPARATOR = b"\0clusterfn\0"
_SCRIPT = r"""
env -0; printf '\0clusterfn\0'
for script in "$@"; do . "$script" >/dev/null 2>&1; done
env -0
"""
_BEFORE_ANSWER = "clusterfn verified "
_VERIFY = """
import importlib, json, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix, "modules": {}, "torch_cuda": None}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    version = getattr(module, "__version__", None)
    found["modules"][name] = None if version is None else str(version)
    if name == "torch":
        found["torch_cuda"] = module.version.cuda or ""
print("\\n" + MARK + json.dumps(found), flush=True)
"""


class ProgramFailed(Exception):
    """The program failed, or exceeded its time limit."""

    def __init__(self, message: str, output: bytes) -> None:
        super().__init__(message)
        self.output = output  # what it printed on both streams, the last megabyte
        self.evidence = last_lines(output)


def clean_environ() -> "dict[str, str]":
    """Return this process's variables without those that belong to another interpreter or environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_LEAKS)}


def run_in_environment(
    argv: "list[str]", prefix: str, more: "Mapping[str, str]", idle_s: float, most_s: "Optional[float]" = None
) -> bytes:
    """Run a program in the environment; return what it printed on both streams.

    Args:
        idle_s: For how many seconds it may print nothing and use no CPU time; one that hangs would block everyone who
            waits for the environment.
        most_s: How many seconds it may take in all; None for no limit.

    Raises:
        ProgramFailed: It could not be started, its status is not 0, or it was ended because it took too long.
    """
    kept = clean_environ()
    path = os.path.join(prefix, "bin") + os.pathsep + kept.get("PATH", "/usr/bin:/bin")
    return run_program(argv, dict(kept, PATH=path, CONDA_PREFIX=prefix, PYTHONNOUSERSITE="1", **more), idle_s, most_s)


def run_program(argv: "list[str]", environ: "Mapping[str, str]", idle_s: float, most_s: "Optional[float]") -> bytes:
    """Run a program with these variables and no others, but for the one by which it ends with this process."""
    # A file cannot fill up and block the program, as a pipe can.
    with tempfile.TemporaryFile() as printed:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                cwd="/",
                start_new_session=True,
                env=dict(environ, **_identifying_variable()),
            )
        except OSError as error:
            # Not the error's own text, which repeats the path in Python 3.6.
            raise ProgramFailed("it cannot be started: %s" % os.strerror(error.errno or 0), b"") from error
        too_long = _wait(process, printed.fileno(), idle_s, most_s)
        printed.seek(max(os.fstat(printed.fileno()).st_size - _MOST_OUTPUT, 0))
        output = printed.read()
        code = process.returncode
    if too_long or code:
        how = "it ended with %s" % ("signal %d" % -code if code < 0 else "status %d" % code)
        raise ProgramFailed(too_long + ", and was ended" if too_long else how, output)
    return output


def _wait(process: "subprocess.Popen[bytes]", printed: int, idle_s: float, most_s: "Optional[float]") -> str:
    """Wait until the program ends; end it if it exceeds a limit, and describe how."""
    pid = process.pid
    stall = Stall(idle_s)
    began = time.monotonic()

    def living() -> "list[int]":
        found = {pid, *process_tree.descendants(pid), *process_tree.in_session(pid)}
        return [descendant for descendant in found if process_tree.is_alive(descendant)]

    try:
        while process.poll() is None:
            check_stopped()
            if most_s is not None and time.monotonic() - began > most_s:
                return "it took longer than %s" % format_duration(most_s)
            size = os.fstat(printed).st_size
            has_proc = os.path.exists(process_tree.PROC)
            if has_proc and stall.over([pid] + process_tree.descendants(pid), 0.0, size):
                return "it printed nothing and used no CPU time for %s" % format_duration(idle_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TURN_S)
        return ""
    finally:
        # Some compilers leave a server behind.
        if process.poll() is None or process_tree.in_session(pid):
            process_tree.end(living, process.poll)
            # It is gone, except where no /proc shows it.
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            process.wait()


def find_activation_variables(prefix: str, timeout_s: float) -> "dict[str, str]":
    """Return the variables that activation sets or changes, except PATH."""
    folder = os.path.join(prefix, "etc", "conda", "activate.d")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".sh")) if os.path.isdir(folder) else []
    if not names:
        return {}
    argv = [_SHELL, "-c", _SCRIPT, _SHELL] + [os.path.join(folder, name) for name in names]
    try:
        output = run_in_environment(argv, prefix, {}, timeout_s, timeout_s)
    except ProgramFailed as error:
        message = "the environment cannot be activated: %s" % error
        raise BuildFailed(message, stage="script", evidence=error.evidence) from error
    old, new = [
        dict(os.fsdecode(variable).split("=", 1) for variable in part.split(b"\0") if b"=" in variable)
        for part in output.split(_SEPARATOR, 1)
    ]
    known = (*SHELLS_OWN, "PATH")
    return {name: value for name, value in new.items() if name not in known and old.get(name) != value}


def verify_environment(plan: "BuildPlan", prefix: str) -> "dict[str, Any]":
    """Return what the environment's Python reports of its imports; raise BuildFailed with its last lines otherwise."""

    def failed(what: str, evidence: "list[str]") -> BuildFailed:
        hint = "see the last lines of its Python; a library that the host lacks must be in the specification"
        return BuildFailed("the environment was built, and %s" % what, stage="verify", evidence=evidence, hint=hint)

    argv = [os.path.join(prefix, "bin", "python"), "-I", "-B", "-c", _VERIFY.replace("MARK", repr(_BEFORE_ANSWER))]
    try:
        output = run_in_environment(argv + plan.verify, prefix, {}, plan.timeout_s)
    except ProgramFailed as error:
        # The last line of Python names its exception.
        why = error.evidence[-1] if error.evidence else error
        names = ", ".join(plan.verify) or "anything"
        raise failed("does not import %s: %s" % (names, why), error.evidence) from error
    lines = output.decode("utf-8", "replace").splitlines()
    found = next((line[len(_BEFORE_ANSWER) :] for line in lines if line.startswith(_BEFORE_ANSWER)), None)
    if found is None:
        raise failed("did not say which Python it is", lines[-20:])
    facts = dict(native(json.loads(found)))
    wanted = plan.base["version"] if plan.base is not None else "%d.%d" % plan.python
    if not (facts["python"] + ".").startswith(wanted + "."):
        raise failed("is Python %s, the lock wants %s" % (facts["python"], wanted), [])
    if os.path.realpath(facts["prefix"]) != os.path.realpath(prefix):
        raise failed("has the prefix %s instead of %s" % (facts["prefix"], prefix), [])
    return facts


def refuse_changed(base: "dict[str, str]") -> None:
    """Raise BuildFailed unless the interpreter on this machine is the one that the environment was locked for."""
    evidence: "list[str]" = []
    try:
        argv = [base["path"], "-I", "-S", "-c", _VERSION]
        said = run_program(argv, clean_environ(), _BASE_TIMEOUT_S, _BASE_TIMEOUT_S).decode("utf-8", "replace").strip()
        what = "is Python %s" % said
    except ProgramFailed as error:
        said = ""
        what = "fails (%s)" % error
        evidence = error.evidence
    if said != base["version"]:
        locked = "it is built on Python %s of the host" % base["version"]
        raise BuildFailed(
            "%s, and %s %s on %s" % (locked, base["path"], what, os.uname()[1]),
            stage="python",
            evidence=evidence,
            hint="if the host was updated, run your program again: it locks and builds for the Python that is there "
            "now; if its machines differ, name a Python that all have, or take it from elsewhere (env_python: "
            "standalone)",
        )


_VARIABLE = "CLUSTERFN_BUILDER"
_asked = threading.Event()


class BuildStopped(Exception):
    """The builder was asked to end, or another of its threads failed."""


def end_on_signals() -> None:
    """Let signals ask this process to end, but those that it was started to ignore; have what it starts end with it.

    Call it while there is one thread.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: _asked.set())
    (variable,) = ["%s=%s" % item for item in _identifying_variable().items()]
    # The system closes the writing end when this process ends, however it does.
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return
    try:
        # A signal to the group of the builder must not reach this process.
        os.setsid()
        os.chdir("/")
        os.close(writing)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.read(reading, 1)
        process_tree.end(lambda: process_tree.carrying(variable), lambda: None)
    finally:
        os._exit(0)


def check_stopped(*_: object) -> None:
    """Raise BuildStopped if it was asked to end."""
    if _asked.is_set():
        raise BuildStopped


def _identifying_variable() -> "dict[str, str]":
    """Return the variable that every program of this process carries."""
    pid = os.getpid()
    return {_VARIABLE: "%d/%s" % (pid, process_tree.start_time(pid))}
