"""The exception of an outcome that a host published.

The only place that knows which kind of outcome is which class of error, and what to do about the function's own
exception: its notes on GPUs, missing modules and files, and on a checkpoint. Reads no file and asks no host.
"""

from __future__ import annotations

import concurrent.futures
import os
import posixpath
import re
import sys
from collections.abc import Mapping
from typing import Any

from clusterfn import errors
from clusterfn.bridge import layout
from clusterfn.bridge.attributes import attribute
from clusterfn.bridge.supervisor.text import in_one_line, printable
from clusterfn.calls.outcome import (
    NO_GPU,
    PACKAGES,
    JobLocation,
    checked,
    facts_of,
    known_cuda_error,
    name_files_as_here,
    where_of,
    whole_value,
)
from clusterfn.config import host_text
from clusterfn.hosts import serialization
from clusterfn.packing.project import explain, modules, roots

ERRORS: Mapping[str, type[errors.ClusterfnError]] = {
    layout.COMMAND: errors.CommandFailed,
    layout.RESULT: errors.ResultError,
    layout.PAYLOAD_BROKEN: errors.PayloadError,
    layout.ENVIRONMENT: errors.EnvironmentBuildError,
    layout.EXITED: errors.ExitedEarly,
    layout.SIGNAL: errors.KilledBySignal,
    layout.MEMORY: errors.OutOfMemory,
    layout.TIME: errors.TimeLimit,
    layout.STALLED: errors.Stalled,
    layout.NODE: errors.NodeFailed,
    layout.DISK: errors.DiskFull,
    layout.HOST_DISK: errors.HostDiskFull,
    layout.LOST: errors.WorkerLost,
    layout.TAKEN_BACK: errors.Preempted,
    layout.ACTOR_LOST: errors.ActorLost,
    layout.CANCELLED: errors.Cancelled,
    layout.UNSATISFIABLE: errors.Unsatisfiable,
    layout.DEPENDENCY: errors.DependencyFailed,
}
# Raised as themselves, these would end a loop, an event loop or the interpreter on this machine.
_NOT_RAISED_HERE = (
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
)


# This is the interpreter of an environment that clusterfn builds. A package that you install there is gone once the
# environment is built again.
_MADE = re.compile(rf"/{layout.ENVIRONMENTS}/[0-9a-f]{{16,64}}/bin/python")
# The error of a pickle whose class the script has, and the job has not.
_UNSENT = re.compile(r"Can't get attribute '(\w+)' on <module '__main__'")


class RemoteTraceback(Exception):
    """The traceback on the host, as text, at the end of the chain of the user's exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + printable(self.text)


def exception_of(outcome: Mapping[str, Any], value: bytearray | None, place: JobLocation) -> BaseException:
    """Return the exception for an outcome of any other kind than `returned`."""
    if outcome["kind"] == layout.RAISED:
        return _raised(outcome, value, place)
    cls = ERRORS.get(outcome["kind"], errors.JobError)
    message, facts = outcome.get("message") or f"the job ended as {outcome['kind']!r}", facts_of(outcome, place)
    if outcome.get("earlier"):
        message = f"{message}; {_count(outcome)}"
        facts["evidence"] = [*outcome["earlier"], *facts["evidence"]]
    error = cls(message, **facts)
    if isinstance(error, errors.DependencyFailed):
        error.__cause__ = _cause_of(outcome, value, place)
    elif isinstance(error, errors.DiskFull) and outcome.get("exception"):
        cause = error.__cause__ = _raised({**outcome, "kind": layout.RAISED}, value, place)
        if isinstance(cause, OSError):
            error.errno, error.strerror, error.filename = cause.errno or error.errno, cause.strerror, cause.filename
    elif isinstance(error, errors.CommandFailed):
        error.exit_status, error.signal = outcome.get("code") or error.exit_status, outcome.get("signal") or ""
    elif isinstance(error, errors.ExitedEarly):
        error.code = outcome.get("code")
    elif isinstance(error, errors.KilledBySignal):
        error.signal = outcome.get("signal") or ""
    missing = _about_missing_module(outcome, place.host)
    if missing:
        error.hint = missing
    if outcome.get("checkpoint"):
        error.hint = "; ".join(filter(None, [error.hint, how_to_resume(place.job)]))
    return error


def _cause_of(outcome: Mapping[str, Any], value: bytearray | None, place: JobLocation) -> BaseException | None:
    """Return the exception of the job that was to give the value: its file was copied into this job's."""
    try:
        cause = checked(outcome.get("cause"))
    except ValueError:
        return None
    job = str(cause.get("job"))
    folder = posixpath.join(posixpath.dirname(place.folder), job)
    failed = {**cause, "value": outcome.get("value")}
    return exception_of(failed, value, JobLocation(place.host, job, folder, place.results))


def in_a_line(error: BaseException) -> str:
    """Return type and message in one line, also for an exception whose `__str__` raises."""
    text = (
        error.message if isinstance(error, errors.ClusterfnError) else serialization.part("exceptions").text_of(error)
    )
    return in_one_line(f"{type(error).__name__}: {text}".partition("\n")[0])


def _count(outcome: Mapping[str, Any]) -> str:
    return f"this was the last of {len(outcome['earlier']) + 1} attempts"


def _raised(outcome: Mapping[str, Any], value: bytearray | None, place: JobLocation) -> BaseException:
    what = {"type": "an exception", "message": outcome.get("message") or "", "traceback": ""}
    what.update(outcome.get("exception") or {})
    what["traceback"] = name_files_as_here(what["traceback"].rstrip())
    error = None if place.results.data_only else _rebuilt(outcome, value)
    facts = facts_of(outcome, place)
    facts["hint"] = facts["hint"] or _about_gpus(outcome, place.host)
    if place.results.data_only:
        as_text = f'exceptions of {place.host} arrive as text (results="data"); error.type_name has the class'
        facts["hint"] = "; ".join(filter(None, [facts["hint"], as_text]))
    # An error of asyncio can come only if asyncio is imported, and the import takes time.
    cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", ())
    ends = isinstance(error, (_NOT_RAISED_HERE, cancelled)) or type(error) is concurrent.futures.CancelledError
    if error is None or ends:
        return _function_error(what, facts)
    _, broken = serialization.part("exceptions").attempt(_equip, error, what["traceback"], outcome, place)
    return _function_error(what, facts) if broken else error


def _equip(error: BaseException, traceback: str, outcome: Mapping[str, Any], place: JobLocation) -> None:
    """Add notes and the remote traceback to an exception, whose class may have properties that raise anything."""
    # A path in the home directory of this machine's user means nothing on another machine.
    home = os.path.join(os.path.expanduser("~"), "")
    file = attribute(error, "filename")
    if isinstance(error, FileNotFoundError) or (
        isinstance(error, PermissionError) and isinstance(file, str) and file.startswith(home)
    ):
        hint = explain.of_file(file, place.host)
        error.strerror = f"{error.strerror} {hint}" if hint else error.strerror
    earlier = [*outcome["earlier"], _count(outcome)] if outcome.get("earlier") else []
    note = printable("\n".join(filter(None, [*earlier, _note_on(error, outcome, place.host)])))
    # Before Python 3.11 a traceback shows no notes, so this one gets them as text.
    text = f"{traceback}\n{note}" if note and sys.version_info < (3, 11) else traceback
    remote = RemoteTraceback(f'"""on {where_of(outcome, place)}, job {place.job}\n{text}\n"""')
    if note:
        notes = [*getattr(error, "__notes__", ()), note]
        object.__setattr__(error, "__notes__", notes)
    # `object.__setattr__` does not call the user's own `__setattr__`.
    object.__setattr__(_end_of_chain(error), "__cause__", remote)


def _rebuilt(outcome: Mapping[str, Any], value: bytearray | None) -> BaseException | None:
    container, exceptions = serialization.part("container"), serialization.part("exceptions")
    try:
        records = container.loads(whole_value(outcome, value, container), same_python=False)
        error: BaseException = exceptions.from_records(records)
    except (exceptions.CannotRebuild, container.Damaged):
        return None
    return error


def _function_error(what: Mapping[str, str], facts: dict[str, Any]) -> errors.FunctionError:
    """Make an error with the remote traceback as its evidence; as a cause it would be shown twice."""
    facts["evidence"] = what["traceback"].splitlines()
    if what["type"] == "SystemExit":
        facts["hint"] = facts.get("hint") or "return to end the function early; raise an exception to report a failure"
    message = f": {what['message']}" if what["message"] else ""
    error = errors.FunctionError(f"the function raised {what['type']}{message}", **facts)
    error.type_name, error.traceback = what["type"], what["traceback"]
    return error


def _end_of_chain(error: BaseException) -> BaseException:
    seen = {id(error)}
    while True:
        following = error.__cause__
        if following is None and not error.__suppress_context__:
            following = error.__context__
        if following is None or id(following) in seen:
            return error
        seen.add(id(following))
        error = following


def how_to_resume(job_id: str) -> str:
    """Say how to continue from the checkpoint of a job."""
    return f'it left a checkpoint: call again with resume="{job_id[:4]}" to continue from there'


def _note_on(error: BaseException, outcome: Mapping[str, Any], host: str) -> str | None:
    """Return what else a reader of the function's own exception should know."""
    if type(error).__name__ == "BdbQuit" or (type(error) is EOFError and "EOF when reading a line" in error.args):
        return "a job has no keyboard: input() and breakpoint() get no answer"
    if outcome.get("hint"):
        return str(outcome["hint"])
    text = serialization.part("exceptions").text_of(error)
    unsent = _UNSENT.match(text) if isinstance(error, AttributeError) else None
    if unsent and unsent[1] in vars(sys.modules["__main__"]):
        return (
            f"clusterfn sends only those objects of your script that the code of the call names: write {unsent[1]} in "
            "the function too, or put it into a module"
        )
    hint = None
    if isinstance(error, Exception) and getattr(error, "filename", None) is None:
        # A program that finds no files in a folder says so with an exception of any class.
        said = explain.in_text(text, host, paths_alone=not isinstance(error, FileNotFoundError))
        hint = said and f"not {said}"
    return hint or _about_gpus(outcome, host) or _about_missing_module(outcome, host)


def _about_gpus(outcome: Mapping[str, Any], host: str) -> str | None:
    """Return the advice of the table of CUDA's errors; None if it knows none of the exception's words."""
    cuda_error = known_cuda_error((outcome.get("exception") or {}).get("message") or "")
    if cuda_error is None:
        return None
    if cuda_error.name in NO_GPU:
        if (outcome.get("usage") or {}).get("gpus"):
            return f"the job had GPUs: `clusterfn check {host} --gpus 1` shows why PyTorch cannot use them"
        return "a job sees no GPU unless it asks for one: @cluster(gpus=1)"
    advice = f"{cuda_error.name}: {cuda_error.advice}"
    if outcome.get("earlier") or cuda_error.retry == "never":
        return advice
    return f"{advice}; this may be transient: @cluster(retries=2) retries such a job in a new process, on another GPU"


def _about_missing_module(outcome: Mapping[str, Any], host: str) -> str | None:
    """Say what to do about a module that the environment lacks; None if that is not what happened."""
    missing = (outcome.get("exception") or {}).get("missing")
    missing = missing if isinstance(missing, dict) else {}
    name = host_text.module_name(missing.get("module"))
    if not name:
        return None
    python = host_text.shell_word(missing.get("python"))
    top, _, below = name.partition(".")
    if missing.get("metadata"):
        return (
            f"{python} on {host} has no metadata of {name}: install {name} there; if it is your own project, "
            "install it on this machine (pip install -e .), and clusterfn sends its metadata with its source"
        )
    compiled = next((module for module in modules.compiled_in(top) if f"{name}.".startswith(f"{module.name}.")), None)
    if compiled:
        return (
            f"{compiled.name} is your own, and is not sent, because {compiled.extension.name} is compiled for your "
            f"machine: install it there ({python} -m pip install …)"
        )
    here = explain.of_module(name)
    if modules.is_own(top) and here:
        return here
    if below:
        remote_version = host_text.shell_word(missing.get("version") or "another version")
        ours = serialization.part("load_failure").version_of(top) or "another version"
        return f"{top} in {python} on {host} has no {name}: it is {remote_version} there, and {ours} on this machine"
    with_origin = (distribution for distribution in roots.installed() if distribution.origin)
    named = (own for own in with_origin if top in own.top_level or own.metadata.name.startswith(f"{top}-"))
    folder = next((distribution.origin for distribution in named), "")
    if folder:
        return (
            f"{top} is your own project, installed on this machine from {folder}: after `pip install -e {folder}`, "
            "clusterfn sends it with every call"
        )
    package = PACKAGES.get(top, top)
    lacking = f"No module named {name!r} in {python} on {host}"
    if missing.get("user"):
        return (
            f"{lacking}. `pip install --user` has put it beside that Python, where jobs do not look: install {package} "
            "in a virtual environment, and name that"
        )
    if here:
        return f"{lacking}. {here}"
    if image := missing.get("image"):
        return (
            f"No module named {name!r} in the image {host_text.shell_word(image)} on {host}: add {package} to it, or "
            "make a virtual environment with its Python and --system-site-packages in a folder that the image shows"
        )
    if _MADE.search(python):
        return f"{lacking}, which clusterfn built: add {package} to environment.yml or packages=[…], and call again"
    if python.startswith("/usr/bin/"):
        return (
            f"{lacking}, which belongs to the system: have an environment built, packages=[{package!r}], or create "
            f"one ({python} -m venv ~/v; ~/v/bin/pip install {package}) and set environment: venv:~/v"
        )
    return (
        f"{lacking}: install it on the host ({python} -m pip install {package}), or have an environment built, "
        f"packages=[{package!r}]"
    )
