"""An outcome that a host published, as a value or an exception.

The only place that knows which kind of outcome is which class of error. Reads no file and asks no host.
"""

from __future__ import annotations

import concurrent.futures
import os
import posixpath
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn import errors
from clusterfn.bridge import layout
from clusterfn.bridge.attributes import attribute
from clusterfn.bridge.supervisor.text import format_size, in_one_line, printable
from clusterfn.calls import failure_hints, traceback_files
from clusterfn.calls.failure_hints import how_to_resume as how_to_resume
from clusterfn.calls.outcome_check import checked as checked
from clusterfn.calls.outcome_check import is_usage as is_usage
from clusterfn.calls.outcome_check import read as read
from clusterfn.config import units
from clusterfn.config.spec import ResultPolicy
from clusterfn.hosts import serialization

if TYPE_CHECKING:
    from clusterfn.calls.data_reader import NotData
    from clusterfn.hosts.landing import Value

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
    layout.ACTOR_LOST: errors.ActorLost,
    layout.CANCELLED: errors.Cancelled,
    layout.UNSATISFIABLE: errors.Unsatisfiable,
    layout.PREEMPTED: errors.Preempted,
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


class JobLocation(NamedTuple):
    """Where a job ran, for messages.

    Attributes:
        host: The host's name.
        job: The job's id.
        folder: The job's folder there.
        results: What is accepted of its value.
    """

    host: str
    job: str
    folder: str
    results: ResultPolicy


class RemoteTraceback(Exception):
    """The traceback on the host, as text, at the end of the chain of the user's exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + printable(self.text)


def is_too_large(outcome: Mapping[str, Any], results: ResultPolicy) -> bool:
    """Whether the value is larger than what is fetched without asking."""
    size = (outcome.get("value") or {}).get("size") or 0
    return results.max_bytes is not None and size > results.max_bytes


def too_large(outcome: Mapping[str, Any], place: JobLocation, how: str = "") -> errors.ResultTooLarge | None:
    """Return the error for a value that is larger than what is fetched without asking; None for a smaller one.

    Args:
        how: The beginning of the call that fetches it all the same, if it is no call of a job.
    """
    if not is_too_large(outcome, place.results):
        return None
    size, most = outcome["value"]["size"], place.results.max_bytes or 0
    facts = _facts(outcome, place)
    # A call of a session cannot be attached to: only its Job can fetch the value.
    by_id = "job" if "/" in place.job else f"clusterfn.attach({place.job!r})"
    how = f"{how or by_id + '.result('}max_result={_rounded_up(size)!r})"
    facts.update(stage="result", hint=f"it stays on the host; to fetch it: {how}")
    error = errors.ResultTooLarge(
        f"the value has {_more_than(most, size)}, more than max_result={units.exact_memory(most)}: it was not fetched",
        **facts,
    )
    error.size_bytes = size
    return error


def _more_than(most: int, size: int) -> str:
    """Return the size in the largest unit that shows the difference."""
    shown = [format_size(size), *(f"{size >> bits} {unit}" for bits, unit in ((20, "MB"), (10, "KB")) if size >> bits)]
    return next((each for each in shown if size >= 2**10 and units.parse_memory(each) > most), f"{size} bytes")


def _rounded_up(size: int) -> str:
    """Return a size that `max_result=` takes, and that is no smaller."""
    for unit, word in ((2**30, "GB"), (2**20, "MB")):
        if size >= unit:
            return f"{-(-size // unit)}{word}"
    return f"{-(-size // 2**10)}KB"


def value_of(outcome: Mapping[str, Any], value: Value | None, place: JobLocation) -> Any:
    """Load the value of a job that returned.

    Args:
        outcome: The content of outcome.json, of a final kind.
        value: The content of value.pkl, if there is one.
        place: Where the job ran.

    Raises:
        The function's own exception, or one of `clusterfn.errors`.
    """
    if outcome["kind"] == layout.RETURNED:
        return _load(outcome, value, place)
    raise exception_of(outcome, value, place)


def exception_of(outcome: Mapping[str, Any], value: Value | None, place: JobLocation) -> BaseException:
    """Return the exception for an outcome of any other kind than `returned`."""
    if outcome["kind"] == layout.RAISED:
        return _raised(outcome, value, place)
    cls = ERRORS.get(outcome["kind"], errors.JobError)
    message, facts = outcome.get("message") or f"the job ended as {outcome['kind']!r}", _facts(outcome, place)
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
    missing = failure_hints.about_missing_module(outcome, place.host)
    if missing:
        error.hint = missing
    if outcome.get("checkpoint"):
        error.hint = "; ".join(filter(None, [error.hint, how_to_resume(place.job)]))
    return error


def _cause_of(outcome: Mapping[str, Any], value: Value | None, place: JobLocation) -> BaseException | None:
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


def _where(outcome: Mapping[str, Any], place: JobLocation) -> str:
    node = outcome.get("node")
    return place.host if not node or node == place.host else f"{place.host} ({node})"


def _facts(outcome: Mapping[str, Any], place: JobLocation) -> dict[str, Any]:
    attempt = outcome.get("attempt") or 1
    return {
        "host": _where(outcome, place),
        "job": place.job,
        "stage": outcome.get("stage"),
        "evidence": [traceback_files.name_files_as_here(line) for line in outcome.get("evidence") or ()],
        "hint": outcome.get("hint"),
        "log": f"{place.host}:{layout.attempt_dir(place.folder, attempt)}",
        "retryable": outcome["kind"] in (layout.NODE, layout.LOST),
    }


def _load(outcome: Mapping[str, Any], value: Value | None, place: JobLocation) -> Any:
    container = serialization.part("container")
    read: Callable[..., Any] | None = None
    other: tuple[type[NotData], ...] = ()
    damaged: tuple[type[Exception], ...] = (container.Damaged,)
    if place.results.data_only:
        # The module loads those of all types that are data, and most hosts are trusted.
        from clusterfn.calls import data_reader

        read, other, damaged = data_reader.load, (data_reader.NotData,), (*damaged, data_reader.DamagedPickle)
    try:
        whole = _whole(outcome, value, container)
        return container.loads(whole, read=read, crc=getattr(whole, "crc", None))
    except other as error:
        raise _result_error(
            f'the value holds {error.name}: with results="data" {place.host} may return plain data alone',
            outcome, place,
            hint="return numbers, strings, lists, dicts, dates, paths, arrays or tensors; or write a file and fetch it"
            ' with outputs=; if you trust the host, set results="objects"',
        ) from None  # fmt: skip
    except ModuleNotFoundError as error:
        # The package is installed here, so the module is part of another version of it.
        if sys.modules.get((error.name or "").partition(".")[0]):
            raise _cannot_be_loaded(error, outcome, place) from error
        raise _result_error(
            f"the value needs the module {error.name or error}, which is not installed on this machine", outcome, place,
            hint=f"install {failure_hints.PACKAGES.get(error.name or '', error.name or 'it')}, or return plain data",
        ) from error  # fmt: skip
    except MemoryError as error:
        raise _result_error(
            f"the value does not fit into the memory of this machine: {error}", outcome, place,
            hint=f"call clusterfn.attach({place.job!r}).result() on a machine with more memory, or return less",
        ) from None  # fmt: skip
    except damaged as error:
        raise _result_error(
            f"the value is damaged: {error}", outcome, place,
            hint=f"fetch it again: clusterfn.attach({place.job!r}).result()",
        ) from None  # fmt: skip
    except container.OtherPython as error:
        raise _result_error(
            f"the value was {error}", outcome, place,
            hint="attach to the job from Python {}.{}".format(*error.wanted),
        ) from None  # fmt: skip
    except BaseException as error:  # unpickling runs the user's code, which may raise SystemExit too
        raise _cannot_be_loaded(error, outcome, place) from error


def _cannot_be_loaded(error: BaseException, outcome: Mapping[str, Any], place: JobLocation) -> errors.ResultError:
    failure = serialization.part("load_failure").of(error)
    is_state = type(error).__name__ == "OtherState"
    reason = str(error) if is_state else f"{type(error).__name__}: {error}"
    message = f"the value cannot be loaded on this machine: {reason}{failure.where()}"
    return _result_error(message, outcome, place, hint=_instead_of_loading(error, failure))


def _instead_of_loading(error: BaseException, failure: Any) -> str:
    if "on a CUDA device" in str(error):
        return "the function saved tensors of a GPU itself: call .cpu() before saving, or return the tensors"
    if failure_hints.needs_a_gpu(str(error)):
        return "this machine has no GPU for it: return it in main memory (cupy.asnumpy(x), generator.get_state())"
    if failure.differing:
        requirements = " ".join(
            f"{failure_hints.PACKAGES.get(name, name)}=={version}" for name, version, _ in failure.differing
        )
        return f"install the same versions on this machine (pip install {requirements}), or return plain data"
    return f"return the data that {failure.name or 'the value'} is made from, as plain data or arrays"


def _whole(outcome: Mapping[str, Any], value: Value | None, container: Any) -> Value:
    size = (outcome.get("value") or {}).get("size")
    if value is None or len(value) != size:
        raise container.Damaged(f"{0 if value is None else len(value)} bytes arrived, {size} were written")
    return value


def _result_error(message: str, outcome: Mapping[str, Any], place: JobLocation, hint: str) -> errors.ResultError:
    facts = _facts(outcome, place)
    facts.update(stage="result", hint=hint)
    return errors.ResultError(message, **facts)


def _raised(outcome: Mapping[str, Any], value: Value | None, place: JobLocation) -> BaseException:
    what = {"type": "an exception", "message": outcome.get("message") or "", "traceback": ""}
    what.update(outcome.get("exception") or {})
    what["traceback"] = traceback_files.name_files_as_here(what["traceback"].rstrip())
    error = None if place.results.data_only else _rebuilt(outcome, value)
    facts = _facts(outcome, place)
    facts["hint"] = facts["hint"] or failure_hints.about_gpus(outcome, place.host)
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
        failure_hints.hint_at_file(error, file, place.host)
    earlier = [*outcome["earlier"], _count(outcome)] if outcome.get("earlier") else []
    note = printable("\n".join(filter(None, [*earlier, failure_hints.note_on(error, outcome, place.host)])))
    # Before Python 3.11 a traceback shows no notes, so this one gets them as text.
    text = f"{traceback}\n{note}" if note and sys.version_info < (3, 11) else traceback
    remote = RemoteTraceback(f'"""on {_where(outcome, place)}, job {place.job}\n{text}\n"""')
    if note:
        notes = [*getattr(error, "__notes__", ()), note]
        object.__setattr__(error, "__notes__", notes)
    # `object.__setattr__` does not call the user's own `__setattr__`.
    object.__setattr__(_end_of_chain(error), "__cause__", remote)


def _rebuilt(outcome: Mapping[str, Any], value: Value | None) -> BaseException | None:
    container, exceptions = serialization.part("container"), serialization.part("exceptions")
    try:
        records = container.loads(_whole(outcome, value, container), same_python=False)
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
