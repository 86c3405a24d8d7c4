"""What a Job among the arguments of a call becomes inside the job that takes it: the value, read from the host's disk.

The supervisor writes where the values lie, as its file inputs.json. Each is loaded while the call is, so that its time
and memory are those of the job that takes it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from . import classes, container

# The variable holds the path of inputs.json.
INPUTS_FILE = "CLUSTERFN_INPUTS"
_loaded: dict[tuple[str, int | None], Any] = {}
_inputs: dict[str, Any] = {}
_loads = True


class InputUnavailable(Exception):
    """A value that the call takes does not exist, or cannot be loaded here.

    Attributes:
        kind: The kind of outcome.
        hint: What to do.
        cause: How the job failed that was to return it, as its outcome has it; None if it returned.
    """

    def __init__(self, kind: str, message: str, hint: str, cause: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint
        self.cause = cause


class Unloaded:
    """Replaces a value in processes that need only the functions of the call."""


def load_nothing() -> None:
    """Load no value in this process: a child that needs only functions would hold a second copy of each."""
    global _loads
    _loads = False


def forget() -> None:
    """Drop the values of which the call needed only a part: the whole would stay in memory."""
    _loaded.clear()
    _inputs.clear()


def given(value: Any) -> Any:
    """Return the value itself, which came with the call: its job ran on another host."""
    return value


def value_of(job: str, item: int | None, keys: tuple[Any, ...]) -> Any:
    """Return the value of a Job, of an item of a JobGroup or of all its items, or a part of it.

    Raises:
        InputUnavailable: There is none, or it cannot be loaded in this environment.
    """
    if not _loads:
        return Unloaded()
    if not _inputs:
        with open(os.environ[INPUTS_FILE], encoding="utf-8") as file:
            _inputs.update(json.load(file))
    described = _inputs[job]
    label = f"{described['name']} ({job[:4]})" + ("" if item is None else f"[{item}]")
    if (job, item) not in _loaded:
        # Its own modules come last. Classes of `__main__` that came with the call are those of its values too.
        sys.path.extend(folder for folder in described["folders"] if folder not in sys.path)
        vars(sys.modules["__main__"]).update(classes.of_main())
        if described["lost"]:
            _load(label, "", 0, 0, described["lost"])
        places = described["places"] if item is None else {str(item): described["places"][str(item)]}
        values = [_load(label, *place) for _, place in sorted(places.items(), key=lambda item: int(item[0]))]
        _loaded[job, item] = values if item is None and described["group"] else values[0]
    value = _loaded[job, item]
    for key in keys:
        try:
            value = value[key]
        except (LookupError, TypeError) as error:
            message = f"the value of {label} has no [{key!r}]: {type(error).__name__}: {error}"
            raise InputUnavailable("payload", message, f"see what {described['name']} returns") from error
    return value


def _load(label: str, path: str, offset: int, size: int, failed: dict[str, Any] | None) -> Any:
    if failed:
        message = f"{label} has no value: {failed['message']}"
        raise InputUnavailable("dependency", message, f"correct {failed['name']}, and call both again", failed)
    try:
        return container.load(path, container.no_blob, part=[offset, size], any_python=True, shared=True)
    except FileNotFoundError as error:
        raise InputUnavailable("payload", f"the value of {label} was removed: {path}", "call both again") from error
    except Exception as error:  # loading runs the user's code, which may raise anything
        hint = f"give both the same {'Python' if 'byte code' in str(error) else 'environment'}"
        if isinstance(error, ModuleNotFoundError):
            hint = f"install the package that provides {error.name!r} in the environment"
        message = f"the value of {label} could not be loaded here: {type(error).__name__}: {error}"
        raise InputUnavailable("payload", message, hint) from error
