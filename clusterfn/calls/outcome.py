"""An outcome that a host published, as a value or an exception.

The only place that knows which kind of outcome is which class of error. Reads no file and asks no host.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import posixpath
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn import errors
from clusterfn.bridge import layout
from clusterfn.bridge.attributes import attribute
from clusterfn.bridge.supervisor.text import in_one_line, printable
from clusterfn.calls import user_modules
from clusterfn.config import host_text, units
from clusterfn.config.spec import ResultPolicy
from clusterfn.hosts import serialization

if TYPE_CHECKING:
    from clusterfn.calls.data_reader import NotData
    from clusterfn.hosts.landing import Value

ERRORS: Mapping[str, type[errors.ClusterfnError]] = {
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
# Raised as themselves these would end a loop, the interpreter or an event loop here.
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


_TEXTS = (list, str)
# The type of each field that is read, and of the entries of a list. All but `kind` may be null, or missing.
_TYPES: Mapping[str, tuple[type, type | None]] = {
    "kind": (str, None), "stage": (str, None), "message": (str, None), "signal": (str, None), "hint": (str, None),
    "node": (str, None), "code": (int, None), "attempt": (int, None), "superseded_by": (int, None),
    "exception": (dict, str), "value": (dict, int), "usage": (dict, None), "retried": (dict, None),
    "checkpoint": (bool, None), "cause": (dict, None),
    "evidence": _TEXTS, "notes": _TEXTS, "earlier": _TEXTS, "left": (list, list),
}  # fmt: skip


_USED = ("wall_s", "cpu_s", "peak_memory_bytes")
_USED_OF_GPU = ("peak_memory_bytes", "mean_use_percent")
_DEEPEST_CAUSE = 20
_MOST = 1 << 63  # of any number: what is larger is no count, and cannot be divided or shown as a time


def read(data: bytes) -> dict[str, Any]:
    """Parse the content of outcome.json.

    Raises:
        ValueError: It is damaged; the message says how.
    """
    try:
        return checked(json.loads(data))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def checked(told: Any) -> dict[str, Any]:
    """Check the type of every field of an outcome, which the function itself may have written.

    Raises:
        ValueError: One has another; the message names it.
    """
    if not isinstance(told, dict) or told.get("kind") is None:
        raise ValueError("it has no valid kind of outcome")
    for name, (wanted, each) in _TYPES.items():
        found = told.get(name)
        if found is not None and not (_is(found, wanted) and all(_entry_is(*entry, each) for entry in _entries(found))):
            raise ValueError(f"its {name!r} is {_shown(found)}")
    for name, found in [*told.items(), *(told.get("value") or {}).items()]:
        if isinstance(found, (int, float)) and not -_MOST < found < _MOST:
            raise ValueError(f"its {name!r} is {_shown(found)}")
    if not _is_usage(told.get("usage") or {}):
        raise ValueError(f"its 'usage' is {_shown(told['usage'])}")
    if (told.get("value") or {}).get("size", 0) < 0:
        raise ValueError("its value has a negative size")
    cause, depth = told.get("cause"), 0
    while isinstance(cause, dict):
        cause, depth = cause.get("cause"), depth + 1
        if depth > _DEEPEST_CAUSE:
            raise ValueError("its causes are nested too deeply")
    return told


def _shown(found: Any) -> str:
    return reprlib.repr(found).encode("ascii", "backslashreplace").decode()[:80]  # nobody knows how deep it is


def _is_usage(told: Mapping[str, Any]) -> bool:
    """Whether what a job used is in numbers, for which people and tables take it."""
    gpus = told.get("gpus") or []
    if not (isinstance(gpus, list) and all(isinstance(each, dict) for each in gpus)):
        return False
    used = [told.get(name) for name in _USED] + [each.get(name) for each in gpus for name in _USED_OF_GPU]
    return all(each is None or (type(each) in (int, float) and -_MOST < each < _MOST) for each in used)


def _entries(found: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(found, dict):
        return found.items()
    return enumerate(found) if isinstance(found, list) else ()


def _is(found: Any, wanted: type) -> bool:
    return isinstance(found, wanted) and not (wanted is int and isinstance(found, bool))


def _entry_is(name: Any, found: Any, wanted: type | None) -> bool:
    if wanted is list:  # the name and size of a file
        return isinstance(found, list) and len(found) == 2
    return wanted is None or name == "missing" or _is(found, wanted)


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
    by_id = "job" if "/" in place.job else f"clusterfn.attach({place.job!r})"  # a call of a session has its Job alone
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
    shown = (units.shown_memory(size), f"{size >> 20}MB", f"{size >> 10}KB")
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
    elif isinstance(error, errors.ExitedEarly):
        error.code = outcome.get("code")
    elif isinstance(error, errors.KilledBySignal):
        error.signal = outcome.get("signal") or ""
    missing = _about_missing_module(outcome, place)
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


def how_to_resume(job_id: str) -> str:
    """Say how to continue from the checkpoint of a job."""
    return f'it left a checkpoint: call again with resume="{job_id[:4]}" to continue from there'


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
        "evidence": [user_modules.own_files(line) for line in outcome.get("evidence") or ()],
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
        from clusterfn.calls import data_reader  # it loads the modules of all types that are data

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
        raise _result_error(
            f"the value needs the module {error.name or error}, which is not installed on this machine", outcome, place,
            hint=f"install {_PACKAGES.get(error.name or '', error.name or 'it')}, or return plain data",
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
    except BaseException as error:  # unpickling runs code of the user's, which may raise anything, SystemExit included
        failure = serialization.part("load_failure").of(error)
        is_state = type(error).__name__ == "OtherState"
        said = str(error) if is_state else f"{type(error).__name__}: {error}"
        raise _result_error(
            f"the value cannot be loaded on this machine: {said}{failure.where()}", outcome, place,
            hint=_instead_of_loading(error, failure),
        ) from error  # fmt: skip


def _instead_of_loading(error: BaseException, failure: Any) -> str:
    if "on a CUDA device" in str(error):
        return "the function saved tensors of a GPU itself: call .cpu() before saving, or return the tensors"
    if failure.differing:
        wanted = " ".join(f"{_PACKAGES.get(name, name)}=={there}" for name, there, _ in failure.differing)
        return f"install the same versions on this machine (pip install {wanted}), or return plain data"
    return f"return the data that {failure.name or 'the value'} is made from, as plain data or arrays"


def _whole(outcome: Mapping[str, Any], value: Value | None, container: Any) -> Value:
    wanted = (outcome.get("value") or {}).get("size")
    if value is None or len(value) != wanted:
        raise container.Damaged(f"{0 if value is None else len(value)} bytes arrived, {wanted} were written")
    return value


def _result_error(message: str, outcome: Mapping[str, Any], place: JobLocation, hint: str) -> errors.ResultError:
    facts = _facts(outcome, place)
    facts.update(stage="result", hint=hint)
    return errors.ResultError(message, **facts)


def _raised(outcome: Mapping[str, Any], value: Value | None, place: JobLocation) -> BaseException:
    what = {"type": "an exception", "message": outcome.get("message") or "", "traceback": ""}
    what.update(outcome.get("exception") or {})
    what["traceback"] = user_modules.own_files(what["traceback"].rstrip())
    error = None if place.results.data_only else _rebuilt(outcome, value)
    facts = _facts(outcome, place)
    facts["hint"] = facts["hint"] or _about_gpus(outcome, place)
    if place.results.data_only:
        as_text = f'exceptions of {place.host} arrive as text (results="data"); error.type_name has the class'
        facts["hint"] = "; ".join(filter(None, [facts["hint"], as_text]))
    # An error of asyncio can be here only if it was imported; otherwise the import is saved.
    cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", ())
    ends = isinstance(error, (_NOT_RAISED_HERE, cancelled)) or type(error) is concurrent.futures.CancelledError
    if error is None or ends:
        return _function_error(what, facts)
    _, broken = serialization.part("exceptions").attempt(_equip, error, what["traceback"], outcome, place)
    return _function_error(what, facts) if broken else error


def _equip(error: BaseException, traceback: str, outcome: Mapping[str, Any], place: JobLocation) -> None:
    """Add notes and the remote traceback to an exception, whose class may have properties that raise anything."""
    home = os.path.join(os.path.expanduser("~"), "")  # of this machine's user, which says nothing on another machine
    file = attribute(error, "filename")
    if isinstance(error, FileNotFoundError) or (
        isinstance(error, PermissionError) and isinstance(file, str) and file.startswith(home)
    ):
        _hint_at_file(error, file, place)
    earlier = [*outcome["earlier"], _count(outcome)] if outcome.get("earlier") else []
    note = printable("\n".join(filter(None, [*earlier, _note_on(error, outcome, place)])))
    text = f"{traceback}\n{note}" if note and sys.version_info < (3, 11) else traceback  # which prints no notes
    remote = RemoteTraceback(f'"""on {_where(outcome, place)}, job {place.job}\n{text}\n"""')
    if note:
        notes = [*getattr(error, "__notes__", ()), note]
        object.__setattr__(error, "__notes__", notes)
    object.__setattr__(_end_of_chain(error), "__cause__", remote)  # past a __setattr__ of the user's


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
    said = f": {what['message']}" if what["message"] else ""
    error = errors.FunctionError(f"the function raised {what['type']}{said}", **facts)
    error.type_name, error.traceback = what["type"], what["traceback"]
    return error


def _note_on(error: BaseException, outcome: Mapping[str, Any], place: JobLocation) -> str | None:
    """Return what else a reader of the function's own exception should know."""
    if type(error).__name__ == "BdbQuit" or (type(error) is EOFError and "EOF when reading a line" in error.args):
        return "a job has no keyboard: input() and breakpoint() get no answer"
    if outcome.get("hint"):
        return str(outcome["hint"])
    if isinstance(error, ValueError) and _ONE_EACH in serialization.part("exceptions").text_of(error):
        return (
            "clusterfn calls the function once on each node: ask for tasks_per_node=, as many as devices; or "
            "start the processes with torch.distributed.launcher.api.elastic_launch, as examples/frameworks.py does"
        )
    return _about_gpus(outcome, place) or _about_missing_module(outcome, place)


def _about_gpus(outcome: Mapping[str, Any], place: JobLocation) -> str | None:
    """Return the advice of the table of CUDA's errors; None if it knows none of the exception's words."""
    text = (outcome.get("exception") or {}).get("message") or ""
    if not re.search(_OF_GPUS, text):
        return None
    from clusterfn.gpu.cuda_errors import (
        find_known_error,  # here: few errors are of GPUs, and it costs some milliseconds
    )

    known = find_known_error(text)
    if known is None:
        return None
    if known.name in _NO_GPU:
        if (outcome.get("usage") or {}).get("gpus"):
            return f"the job had GPUs: `clusterfn check {place.host} --gpus 1` shows why PyTorch cannot use them"
        return "a job sees no GPU unless it asks for one: @cluster(gpus=1)"
    advice = f"{known.name}: {known.advice}"
    if outcome.get("earlier") or known.retry == "never":
        return advice
    return f"{advice}; this may be transient: @cluster(retries=2) retries such a job in a new process, on another GPU"


_OF_GPUS = r"CUDA|NCCL|NVLink|GPU|NVIDIA|NVML|libcuda|libnvidia|\bcu[A-Z]|CU[A-Z]+_STATUS|kernel image"
_ONE_EACH = "the number of tasks per node configured in"  # Lightning on SLURM, to devices=2 on several nodes
_NO_GPU = ("cudaErrorNoDevice", "no NVIDIA driver", "PyTorch without CUDA")


def _about_missing_module(outcome: Mapping[str, Any], place: JobLocation) -> str | None:
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
            f"{python} on {place.host} has no metadata of {name}: install {name} there; if it is your own project, "
            "install it on this machine (pip install -e .), and clusterfn sends its metadata with its source"
        )
    compiled = next((each for each in user_modules.compiled_in(top) if f"{name}.".startswith(f"{each.name}.")), None)
    if compiled:
        return (
            f"{compiled.name} is your own, and is not sent, because {compiled.extension.name} is compiled for your "
            f"machine: install it there ({python} -m pip install …)"
        )
    if user_modules.is_own(top):
        return (
            f"{top} is your own module, but was not sent to {place.host}: clusterfn sends only modules that an "
            f"import statement names; write `import {top}` in the function"
        )
    if below:
        there = host_text.shell_word(missing.get("version") or "another version")
        here = serialization.part("load_failure").version_of(top) or "another version"
        return f"{top} in {python} on {place.host} has no {name}: it is {there} there, and {here} on this machine"
    folder = _installed_from(top)
    if folder:
        return (
            f"{top} is your own project, installed on this machine from {folder}: after `pip install -e {folder}`, "
            "clusterfn sends it with every call"
        )
    if top in getattr(sys, "stdlib_module_names", ()):
        version = "Python {}.{}".format(*sys.version_info[:2])
        return f"{top} is a module of {version}, which {python} lacks: use an environment with {version}"
    package = _PACKAGES.get(top, top)
    lacking = f"No module named {name!r} in {python} on {place.host}"
    found: list[Path] = []
    with contextlib.suppress(OSError):  # the working directory was removed
        found = [path for below in (f"{top}.py", f"{top}/__init__.py") for path in Path().glob(f"*/{below}")]
    if found:
        return (
            f"{lacking}. {found[0]} is on this machine: clusterfn sends modules that your program itself can import, "
            f"so add {found[0].parts[0]} to PYTHONPATH or sys.path here"
        )
    if _MADE.search(python):
        return f"{lacking}, which clusterfn built: add {package} to environment.yml or packages=[…], and call again"
    if python.startswith("/usr/bin/"):
        return (
            f"{lacking}, which belongs to the system: have an environment built, packages=[{package!r}], or create "
            f"one ({python} -m venv ~/v; ~/v/bin/pip install {package}) and set environment: venv:~/v"
        )
    return f"{lacking}: install it on the host ({python} -m pip install {package})"


def _installed_from(module: str) -> str:
    """Return the local folder that a module's project was installed from, without -e; "" if from an index."""
    import importlib.metadata as metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    known: Mapping[str, list[str]] = getattr(metadata, "packages_distributions", dict)()  # from Python 3.10 on
    for project in known.get(module) or [module]:
        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
            told = json.loads(metadata.distribution(project).read_text("direct_url.json") or "{}")
            if "dir_info" in told and str(told.get("url")).startswith("file://"):
                return str(url2pathname(urlsplit(told["url"]).path))
    return ""


# The interpreter of an environment that clusterfn builds: a package that you install into it is gone when it is
# rebuilt.
_MADE = re.compile(rf"/{layout.ENVIRONMENTS}/[0-9a-f]{{16,64}}/bin/python")

# Modules whose package has another name.
_PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "faiss": "faiss-cpu", "sklearn": "scikit-learn", "skimage": "scikit-image", "yaml": "pyyaml",
}  # fmt: skip


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


def _hint_at_file(error: OSError, file: object, place: JobLocation) -> None:
    if isinstance(file, (str, os.PathLike)) and os.path.exists(file):
        name = os.fspath(file)
        absolute = os.path.isabs(name)
        where, here = (
            ("on", "it is on this machine")
            if absolute
            else ("in the job's own folder on", "it is in your working directory")
        )
        kind = "Directory" if os.path.isdir(name) else "File"
        hint = f"{where} {place.host}; {here}: pass clusterfn.{kind}({name!r}) as an argument"
        error.strerror = f"{error.strerror} {hint}"
