"""An outcome that a host published: checks it, and loads its value. `outcome_errors` has its exception.

Reads no file and asks no host. The function itself may have written anything.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from clusterfn import errors
from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import format_size
from clusterfn.config import units
from clusterfn.config.spec import ResultPolicy
from clusterfn.hosts import serialization

_TEXTS = (list, str)
# The type of each field that is read, and of the entries of a list. All but `kind` may be null, or missing.
_TYPES: Mapping[str, tuple[type, type | None]] = {
    "kind": (str, None), "stage": (str, None), "message": (str, None), "signal": (str, None), "hint": (str, None),
    "node": (str, None), "code": (int, None), "attempt": (int, None), "superseded_by": (int, None),
    "exception": (dict, str), "value": (dict, int), "usage": (dict, None), "retried": (dict, None),
    "checkpoint": (bool, None), "cause": (dict, None),
    "evidence": _TEXTS, "notes": _TEXTS, "earlier": _TEXTS, "left": (list, list),
}  # fmt: skip
_USED = ("wall_s", "cpu_s", "peak_memory_bytes", "items", "longest_s")
_USED_OF_GPU = ("peak_memory_bytes", "mean_use_percent")
_USED_NOW, _USED_NOW_OF_GPU = ("cores", "memory_bytes"), ("memory_bytes", "use_percent")
_DEEPEST_CAUSE = 20
# A larger number is no count, and cannot be divided or shown as a time.
_MOST = 1 << 63
# Modules that were sent are in a folder named by a hash of their content, which says nothing to a reader.
_SENT_SOURCES = re.compile(rf'File "[^"]*/{layout.SOURCES}/[0-9a-f]{{64}}/')
# The path to a part of a value, as its host has written it.
_LONGEST_PART = 300
# The packages of these modules have other names.
PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "faiss": "faiss-cpu", "sklearn": "scikit-learn", "skimage": "scikit-image", "yaml": "pyyaml",
}  # fmt: skip
_OF_GPUS = r"CUDA|NCCL|NVLink|GPU|NVIDIA|NVML|libcuda|libnvidia|\bcu[A-Z]|CU[A-Z]+_STATUS|kernel image"
NO_GPU = ("cudaErrorNoDevice", "no NVIDIA driver", "PyTorch without CUDA")
_NAMED_FILE = re.compile(r'File "([^"\n]+)"(?=, line \d)')


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


# its check


def read(data: bytes) -> dict[str, Any]:
    """Parse the content of outcome.json.

    Raises:
        ValueError: It is damaged; the message says how.
    """
    try:
        return checked(json.loads(data))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def checked(fields: Any) -> dict[str, Any]:
    """Check the type of every field of an outcome, which the function itself may have written.

    Raises:
        ValueError: One has another; the message names it.
    """
    if not isinstance(fields, dict) or fields.get("kind") is None:
        raise ValueError("it has no valid kind of outcome")
    for name, (expected, entry_type) in _TYPES.items():
        value = fields.get(name)
        entries: Iterable[tuple[Any, Any]] = enumerate(value) if isinstance(value, list) else ()
        entries = value.items() if isinstance(value, dict) else entries
        if value is not None and not (_is(value, expected) and all(_entry_is(*entry, entry_type) for entry in entries)):
            raise ValueError(f"its {name!r} is {_shown(value)}")
    for name, value in [*fields.items(), *(fields.get("value") or {}).items()]:
        if isinstance(value, (int, float)) and not -_MOST < value < _MOST:
            raise ValueError(f"its {name!r} is {_shown(value)}")
    if not is_usage(fields.get("usage") or {}):
        raise ValueError(f"its 'usage' is {_shown(fields['usage'])}")
    if (fields.get("value") or {}).get("size", 0) < 0:
        raise ValueError("its value has a negative size")
    cause, depth = fields.get("cause"), 0
    while isinstance(cause, dict):
        cause, depth = cause.get("cause"), depth + 1
        if depth > _DEEPEST_CAUSE:
            raise ValueError("its causes are nested too deeply")
    return fields


def _shown(value: Any) -> str:
    # `reprlib` limits the depth: a value from the host may be nested deeply enough to exhaust the stack of `repr`.
    return reprlib.repr(value).encode("ascii", "backslashreplace").decode()[:80]


def is_usage(usage: Any) -> bool:
    """Whether what a job used, or uses now, is in numbers, for which people and tables take it."""
    is_known = _has_numbers(usage, _USED, _USED_OF_GPU)
    return is_known and _has_numbers(usage.get("now") or {}, _USED_NOW, _USED_NOW_OF_GPU)


def _has_numbers(usage: Any, names: Sequence[str], names_of_gpu: Sequence[str]) -> bool:
    gpus = (usage.get("gpus") or []) if isinstance(usage, dict) else None
    if not (isinstance(gpus, list) and all(isinstance(gpu, dict) for gpu in gpus)):
        return False
    used = [usage.get(name) for name in names] + [gpu.get(name) for gpu in gpus for name in names_of_gpu]
    return all(number is None or (type(number) in (int, float) and -_MOST < number < _MOST) for number in used)


def _is(value: Any, expected: type) -> bool:
    return isinstance(value, expected) and not (expected is int and isinstance(value, bool))


def _entry_is(name: Any, value: Any, expected: type | None) -> bool:
    # A list here is the name and size of a file.
    if expected is list:
        return isinstance(value, list) and len(value) == 2
    return expected is None or name == "missing" or _is(value, expected)


# its place and its files


def where_of(outcome: Mapping[str, Any], place: JobLocation) -> str:
    """Return the host, and the machine of the job where that is another one."""
    node = outcome.get("node")
    return place.host if not node or node == place.host else f"{place.host} ({node})"


def facts_of(outcome: Mapping[str, Any], place: JobLocation) -> dict[str, Any]:
    """Return what every error of this outcome says of it, by the names of `ClusterfnError`."""
    attempt = outcome.get("attempt") or 1
    return {
        "host": where_of(outcome, place),
        "job": place.job,
        "stage": outcome.get("stage"),
        "evidence": [name_files_as_here(line) for line in outcome.get("evidence") or ()],
        "hint": outcome.get("hint"),
        "log": f"{place.host}:{layout.attempt_dir(place.folder, attempt)}",
        "retryable": outcome["kind"] in layout.GONE,
    }


def name_files_as_here(text: str) -> str:
    """Return `text` with the user's own modules and notebook cells named as on this machine."""
    return _NAMED_FILE.sub(_as_cell, _SENT_SOURCES.sub('File "', text))


def _as_cell(named: re.Match[str]) -> str:
    """Return `Cell In[6]`, as IPython's tracebacks name the file of a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    label, number = (name_of(named[1]) if name_of else None) or ("", "")
    return f"{label} {number}" if number else named[0]


# its value


def is_too_large(outcome: Mapping[str, Any], results: ResultPolicy) -> bool:
    """Whether the value is larger than what is fetched without asking."""
    size = (outcome.get("value") or {}).get("size") or 0
    return results.max_bytes is not None and size > results.max_bytes


def too_large(outcome: Mapping[str, Any], place: JobLocation) -> errors.ResultTooLarge | None:
    """Return the error for a value that is larger than what is fetched without asking; None for a smaller one."""
    if not is_too_large(outcome, place.results):
        return None
    size, most = outcome["value"]["size"], place.results.max_bytes or 0
    enough = f"max_result='{-(-size // 2**20)}MB'"
    job, _, item = place.job.partition("[")
    how = f"clusterfn.attach({job!r}).result({enough})"
    if item:
        how = f"clusterfn.attach({job!r}, {enough}).result({item[:-1]})"
    elif "/" in job:
        # A call of a session cannot be attached to: only its Job can fetch the value.
        how = f"job.result({enough})"
    facts = facts_of(outcome, place)
    facts.update(stage="result", hint=f"it stays on the host; to fetch it: {how}")
    error = errors.ResultTooLarge(
        f"the value has {format_size(size)} ({size} bytes), more than max_result={units.exact_memory(most)}: "
        "it was not fetched",
        **facts,
    )
    error.size_bytes = size
    return error


def value_of(
    outcome: Mapping[str, Any], value: bytearray | None, place: JobLocation, given: Mapping[str, pathlib.PurePath] = {}
) -> Any:
    """Load the value of a job that returned.

    Args:
        outcome: The content of outcome.json.
        value: The content of value.pkl, if there is one.
        place: Where the job ran.
        given: The caller's own path of each argument that is a file, by its path there: the value has these.

    Raises:
        ResultError: It cannot be loaded on this machine.
    """
    container = serialization.part("container")
    read: Callable[..., Any] | None = None
    if place.results.data_only:
        read = functools.partial(serialization.part("data_reader").loads, free=units.free_memory())
    try:
        loaded = container.loads(whole_value(outcome, value, container), read=read)
        return with_own_paths(loaded, given) if given else loaded
    except container.NoPlainData as error:
        what = str(error)[:_LONGEST_PART] or "the value is a Python pickle"
        raise _result_error(
            f'{what}: with results="data" {place.host} may return plain data alone',
            outcome,
            place,
            hint="return numbers, strings, lists, dicts, dates, paths, arrays or tensors; or write a file and fetch it"
            ' with outputs=; if you trust the host, set results="objects"',
        ) from None
    except ModuleNotFoundError as error:
        # The package is installed here, so the module is part of another version of it.
        if sys.modules.get((error.name or "").partition(".")[0]):
            raise _cannot_be_loaded(error, outcome, place) from error
        raise _result_error(
            f"the value needs the module {error.name or error}, which is not installed on this machine",
            outcome,
            place,
            hint=f"install {PACKAGES.get(error.name or '', error.name or 'it')}, or return plain data",
        ) from error
    except MemoryError as error:
        raise _result_error(
            f"the value does not fit into the memory of this machine: {error}",
            outcome,
            place,
            hint=f"call clusterfn.attach({place.job!r}).result() on a machine with more memory, or return less",
        ) from None
    except container.Damaged as error:
        raise _result_error(
            f"the value is damaged: {error}",
            outcome,
            place,
            hint=f"fetch it again: clusterfn.attach({place.job!r}).result()",
        ) from None
    except container.OtherPython as error:
        raise _result_error(
            f"the value was {error}", outcome, place, hint="attach to the job from Python {}.{}".format(*error.wanted)
        ) from None
    except BaseException as error:  # unpickling runs the user's code, which may raise SystemExit too
        raise _cannot_be_loaded(error, outcome, place) from error


def with_own_paths(value: Any, caller_paths: Mapping[str, pathlib.PurePath]) -> Any:
    """Return a value with the caller's own paths in place of the host's paths of the same files.

    Texts and paths are looked at, alone and in built-in containers, keys included. Only a whole path is replaced: that
    of a File or Directory which was an argument, or one below such a Directory.

    Args:
        caller_paths: Path on the host -> path here.
    """
    # By their ids; they are held, so that no new object gets the id of an earlier one. Lists and dicts stay the same.
    seen: dict[int, Any] = {}

    def given(value: Any) -> Any:
        kind = type(value)
        if kind is str or issubclass(kind, pathlib.PurePath):
            here = _here(str(value), caller_paths)
            if here is None:
                return value
            return str(here) if isinstance(value, str) else pathlib.Path(here)
        if kind in (tuple, set, frozenset):
            return kind(map(given, value))
        if kind in (list, dict) and id(value) not in seen:
            seen[id(value)] = value
            if kind is list:
                value[:] = map(given, value)
            else:
                pairs = [(given(key), given(item)) for key, item in value.items()]
                value.clear()
                value.update(pairs)
        return value

    return given(value)


def _here(text: str, caller_paths: Mapping[str, pathlib.PurePath]) -> pathlib.PurePath | None:
    for remote, here in caller_paths.items():
        if text == remote or text.startswith(f"{remote}/"):
            return here / text[len(remote) + 1 :]
    return None


def _cannot_be_loaded(error: BaseException, outcome: Mapping[str, Any], place: JobLocation) -> errors.ResultError:
    failure = serialization.part("load_failure").of(error)
    message = f"the value cannot be loaded on this machine: {type(error).__name__}: {error}{failure.where()}"
    return _result_error(message, outcome, place, hint=_instead_of_loading(error, failure))


def _instead_of_loading(error: BaseException, failure: Any) -> str:
    if "on a CUDA device" in str(error):
        return "the function saved tensors of a GPU itself: call .cpu() before saving, or return the tensors"
    if _needs_a_gpu(str(error)):
        return "this machine has no GPU for it: return it in main memory (cupy.asnumpy(x), generator.get_state())"
    if failure.differing:
        names = PACKAGES
        requirements = " ".join(f"{names.get(name, name)}=={version}" for name, version, _ in failure.differing)
        return f"install the same versions on this machine (pip install {requirements}), or return plain data"
    return f"return the data that {failure.name or 'the value'} is made from, as plain data or arrays"


def _needs_a_gpu(text: str) -> bool:
    """Whether an error says that there is no GPU where one is needed."""
    cuda_error = known_cuda_error(text)
    return cuda_error is not None and cuda_error.name in (*NO_GPU, "cudaErrorInsufficientDriver", "libcuda is missing")


def known_cuda_error(text: str) -> Any:
    """Return the row of the table of CUDA's errors for a text; None if it knows none of its words."""
    if not re.search(_OF_GPUS, text):
        return None
    # Few errors are about GPUs, and the import takes some milliseconds.
    from clusterfn.bridge.worker import cuda_table

    return cuda_table.find_known_error(text)


def whole_value(outcome: Mapping[str, Any], value: bytearray | None, container: Any) -> bytearray:
    """Return the value.

    Raises:
        Damaged: It is not as long as the outcome says.
    """
    size = (outcome.get("value") or {}).get("size")
    if value is None or len(value) != size:
        raise container.Damaged(f"{0 if value is None else len(value)} bytes arrived, {size} were written")
    return value


def _result_error(message: str, outcome: Mapping[str, Any], place: JobLocation, hint: str) -> errors.ResultError:
    facts = facts_of(outcome, place)
    facts.update(stage="result", hint=hint)
    return errors.ResultError(message, **facts)
