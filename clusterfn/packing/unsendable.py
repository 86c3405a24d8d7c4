"""What cannot travel with a call: names it, and says what to pass instead."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

from clusterfn.bridge.attributes import attribute
from clusterfn.errors import PayloadError
from clusterfn.hosts import serialization

# Only a program that has loaded one of these modules has objects that `reject_bound` rejects.
MANAGERS = "multiprocessing.managers"
OPTUNA = "optuna"
# A function with its arguments.
CalledWith = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


def cannot_travel(
    call: CalledWith, target: tuple[int, int] | None, error: BaseException, look: Callable[[Any], Any] | None
) -> PayloadError:
    """Return the error that names the part of a call that cannot travel.

    Args:
        call: The function with its arguments.
        target: (major, minor) of the Python for which it was pickled; None for this one's.
        error: What pickling it has raised.
        look: What sees its parts, if jobs are among them.
    """
    function, args, kwargs = call
    if isinstance(error, serialization.part("source").NoSource):
        ours = sys.version_info[:2]
        here, remote = (f"Python {major}.{minor}" for major, minor in (ours, target or ours))
        message = f"the call cannot be sent from {here} to {remote}, which needs source code: {error}"
        hint = f"use an environment with {here}, or run this program with {remote}"
        return PayloadError(message, stage="submit", hint=hint)
    find = serialization.part("unpicklable").find
    parts = [(attribute(function, "__name__", "function"), function), ("args", args), ("kwargs", dict(kwargs))]
    for name, part in parts:
        path, innermost = find(part, name, target, look or reject_bound)
        if not path.endswith(": cannot be pickled"):
            return PayloadError(f"the call cannot be sent: {path}", stage="submit", hint=_instead_of(innermost))
    return PayloadError(f"the call cannot be sent: {type(error).__name__}: {error}", stage="submit")


def _instead_of(part: object) -> str:
    """Say what to pass instead of a part that cannot be sent."""
    # A proxy may say that it has another class, so its real type decides.
    if issubclass(type(part), io.IOBase):
        return "open it inside the function, or pass clusterfn.File(path) as the argument"
    if _is_proxy(part):
        return "pass the data instead, such as list(…) or dict(…) of it"
    if _is_trial(part):
        return "call trial.suggest_…() on this machine, and pass the values; or pass the study to clusterfn.sweep()"
    plain = "create it inside the function, or pass the data it is made from"
    if serialization.part("unpicklable").is_future(part):
        plain = "pass its value: .result()"
    return str(attribute(type(part), "_as_argument", plain))


def reject_bound(obj: object) -> Any:
    """Reject what belongs to a process here: a proxy would not load, and the study of a Trial would learn nothing."""
    if _is_proxy(obj):
        raise pickle.PicklingError("a proxy of a process on your machine cannot be used on another one")
    if _is_trial(obj):
        raise pickle.PicklingError("its study is in the memory of this process, and does not learn what a job suggests")
    return NotImplemented


def _is_proxy(obj: object) -> bool:
    """Whether it stands for an object of another process, such as a list of multiprocessing.Manager()."""
    managers = sys.modules.get(MANAGERS)
    return managers is not None and issubclass(type(obj), managers.BaseProxy)


def _is_trial(obj: object) -> bool:
    """Whether it is a Trial of Optuna whose study is in memory. A copy of it would suggest values to a copy of that."""
    # Another thread may be importing the package, which has no such class before the end of that.
    trial = attribute(sys.modules.get(OPTUNA), "Trial")
    is_one = trial is not None and issubclass(type(obj), trial)
    return is_one and type(attribute(obj, "storage")).__name__ == "InMemoryStorage"
