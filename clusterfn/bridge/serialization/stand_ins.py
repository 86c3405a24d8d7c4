"""What arguments and decorated functions become inside a job.

A payload refers to these by name, so nothing of the library itself is needed to load it.
"""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any


def by_name(module: str, qualname: str) -> Any:
    """Return the object of that name in a module that travelled as source."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def plain_by_name(module: str, qualname: str) -> Any:
    """Return the function behind a decorated name in a module that travelled as source."""
    found = by_name(module, qualname)
    return getattr(found, "__wrapped__", found)


class Submodule:
    """A module that a function may use as an attribute of its package: imported there, if there is one.

    Args:
        name: Its name, which one version of the package may have and another may not.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return imported, (self.name,)


def imported(name: str) -> None:
    """Import a module, if there is one of that name."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}.") or "." not in missing.name:
            raise


@functools.lru_cache(maxsize=64)
def homes_of(kind: type, modules: int) -> dict[int, tuple[str, str]]:
    """Return where the modules of its package have objects of this class: the object's id -> its module and name.

    Args:
        kind: The class.
        modules: How many are loaded: with another number, the answer may be another.
    """
    home: object = kind.__module__  # whatever its module says that it is
    package = home.partition(".")[0] if isinstance(home, str) else None
    loaded = [(name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    return {
        id(value): (name, key)
        for name, module in loaded
        for key, value in list(getattr(module, "__dict__", {}).items())  # a module may be None, or any object
        if type(value) is kind
    }


def sentinel(module: str, name: str, kind: type) -> Any:
    """Return the object of that name; another version of the library may have none: then a new one of its class."""
    try:
        return by_name(module, name)
    except (ImportError, AttributeError):
        return object.__new__(kind)


def set_state(obj: Any, state: Any) -> None:
    """Set the state of an object past the `__getattr__` and `__setattr__` of its class."""
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        object.__getattribute__(obj, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(obj, name, value)


def with_keywords(function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    """Call `function` with one configuration of a sweep."""
    return function(**keywords)


def come_back(module: str, qualname: str) -> Any:
    """Return the decorated function of that name on the caller's machine; elsewhere an empty one, for `fill`."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if type(found).__module__ == "clusterfn.api.decorator" else Inside()


def fill(decorated: Any, state: dict[str, Any]) -> None:
    """Fill what `come_back` returned, unless it is the caller's own."""
    if isinstance(decorated, Inside):
        decorated.__setstate__(state)


class Inside:
    """A decorated function inside a job: the plain function, in this process. Sending from there is refused."""

    function: Callable[..., Any]

    def on_its_way_back(self) -> tuple[Any, ...]:
        """Reduce it for `pickler`; copies and child processes of the job pickle it as any other object."""
        named = (getattr(self.function, "__module__", None) or "", getattr(self.function, "__qualname__", ""))
        return come_back, named, {"function": self.function}, None, None, fill

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        functools.update_wrapper(self, self.function, assigned=("__module__",), updated=())

    def __getattr__(self, name: str) -> Any:
        """Take its name and attributes from the function, which may get them only later."""
        if name == "function":  # not yet: it is being loaded
            raise AttributeError(name)
        return getattr(self.function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def local(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a call."""
        return self.function(*args, **kwargs)

    def on(self, host: str) -> Inside:
        """This function itself: inside a job everything runs in the job's own process."""
        return self

    def with_options(self, **options: Any) -> Inside:
        """This function itself: inside a job the resources are those of the job."""
        return self

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: a job cannot send jobs."""
        raise self._refusal("submit")

    def map(self, *args: Any, **kwargs: Any) -> Any:
        """Refused as `submit` is."""
        raise self._refusal("map")

    def script(self, *args: Any, **kwargs: Any) -> Any:
        """Refused as `submit` is."""
        raise self._refusal("script")

    def _refusal(self, name: str) -> RuntimeError:
        return RuntimeError(
            f"{getattr(self.function, '__name__', 'function')}.{name}() inside a job: a job cannot submit jobs; "
            "call the function directly, it runs in this process"
        )


def path_of(digest: str, name: str) -> pathlib.Path:
    """Return the path, inside a job, of a File or Directory that the caller passed."""
    return pathlib.Path(os.environ["CLUSTERFN_FILES"], digest, name)
