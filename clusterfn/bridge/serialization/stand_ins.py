"""What arguments and decorated functions become inside a job.

A payload refers to these by name, so nothing of the library itself is needed to load it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib


def by_name(module: str, qualname: str) -> Any:
    """Return the object of that name in a module that travelled as source."""
    value: Any = importlib.import_module(module)
    for part in qualname.split("."):
        value = getattr(value, part)
    return value


def plain_by_name(module: str, qualname: str) -> Any:
    """Return the function behind a decorated name in a module that travelled as source."""
    function = by_name(module, qualname)
    return getattr(function, "__wrapped__", function)


class Library:
    """A package that is imported when an attribute of it is first needed: most calls need none of these packages."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


class MadeThere:
    """Take the place of what this call returns, until the pickle is loaded."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def imported(name: str) -> None:
    """Import a module that a function may use as an attribute of its package, if this version of that has it."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}.") or "." not in missing.name:
            raise


MISSING = object()


def if_there(value: Any) -> MadeThere | None:
    """Return what stands for a module or class that the other side may lack; None for what cannot be imported."""
    if issubclass(type(value), types.ModuleType):
        is_loaded = sys.modules.get(value.__name__) is value
        return MadeThere(found_or_missing, value.__name__, "") if is_loaded else None
    if not issubclass(type(value), type) or value.__module__ == "__main__" or "<" in value.__qualname__:
        return None
    return MadeThere(found_or_missing, value.__module__, value.__qualname__)


def found_or_missing(module: str, qualname: str) -> Any:
    """Return the object of that name, or `MISSING`."""
    try:
        return by_name(module, qualname) if qualname else importlib.import_module(module)
    except (ImportError, AttributeError):
        return MISSING


def present(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that mean something here."""
    return {name: value for name, value in names.items() if value is not MISSING}


def homes_of(value: Any) -> list[tuple[str, str]]:
    """Return (module, name) of this object in its class's package, or of a plain `object()` in all but the script."""
    kind, modules = type(value), len(sys.modules)
    count, homes = _homes.get(kind, (-1, {}))
    # After a reload, a module has other objects under the same names.
    checked = [id(value)] if id(value) in homes else list(homes)
    if count == modules and all(id(_value_of(*home)) == number for number in checked for home in homes[number]):
        return homes.get(id(value), [])
    # `__module__` may be any object.
    home: object = kind.__module__
    package = home.partition(".")[0] if isinstance(home, str) else None
    every = [(name, module) for name, module in list(sys.modules.items()) if name not in ("__main__", "__mp_main__")]
    loaded = every if kind is object else [entry for entry in every if entry[0].partition(".")[0] == package]
    homes = {}
    for name, module in loaded:
        # An entry of `sys.modules` may be None, or any object.
        for key, each in list(getattr(module, "__dict__", {}).items()):
            if type(each) is kind:
                homes.setdefault(id(each), []).append((name, key))
    _homes[kind] = (modules, homes)
    return homes.get(id(value), [])


def _value_of(module: str, key: str) -> Any:
    return getattr(sys.modules.get(module), "__dict__", {}).get(key)


_homes: weakref.WeakKeyDictionary[type, tuple[int, dict[int, list[tuple[str, str]]]]] = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=256)
def other_homes(cls: type) -> tuple[tuple[str, str], ...]:
    """Return public modules and names of a class that another version may keep only there.

    `pathlib._local.PosixPath` is `pathlib.PosixPath`, `_thread.lock` is `threading.Lock`, `re.PatternError` is
    `re.error`.
    """
    home = str(cls.__module__)
    name = cls.__qualname__
    public, private, _ = home.partition("._")
    if private and name[0] != "_" and getattr(sys.modules.get(public), name, None) is cls:
        return ((public, name),)
    if home.startswith("_"):
        names = [module for module in sorted(sys.modules) if module[0] != "_"]
        names = [module for module in names if isinstance(sys.modules[module], types.ModuleType)]
        exported = [(module, key) for module in names for key in vars(sys.modules[module]).get("__all__") or ()]
        return tuple((module, key) for module, key in exported if vars(sys.modules[module]).get(key) is cls)
    if issubclass(cls, BaseException):
        scope = getattr(sys.modules.get(home), "__dict__", {})
        return tuple((home, key) for key, value in list(scope.items()) if value is cls and key != name)
    return ()


def by_one_name(*homes: tuple[str, str]) -> Any:
    """Return the object that has one of these names."""
    for home in homes[:-1]:
        with contextlib.suppress(ImportError, AttributeError):
            return by_name(*home)
    return by_name(*homes[-1])


def sentinel(module: str, name: str, kind: type, *others: tuple[str, str]) -> Any:
    """Return the object of that name, or of another; a version of the library without it gets a new one."""
    for home in ((module, name), *others):
        with contextlib.suppress(ImportError, AttributeError):
            return by_name(*home)
    return object.__new__(kind)


def new(cls: type, *args: Any) -> Any:
    """Make an object without its content."""
    return cls.__new__(cls, *args)


def set_state(obj: Any, state: Any) -> None:
    """Set the state of an object past the `__getattr__` and `__setattr__` of its class."""
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    # An attribute may have the name of a property of the class, and `__dict__` may be such a property itself.
    places = (vars(base).get("__dict__") for base in type(obj).__mro__)
    own = next((place for place in places if type(place) is types.GetSetDescriptorType), None)
    if own is not None:
        own.__get__(obj).update(attributes or {})
    else:
        # The class may have slots in this version of Python only.
        slots = {**(attributes or {}), **(slots or {})}
    for name, value in (slots or {}).items():
        object.__setattr__(obj, name, value)


def method_of(owner: Any, name: str) -> types.MethodType:
    """Return a bound method past what the class of its object says of attributes: the object may be empty yet."""
    cls = owner if issubclass(type(owner), type) else type(owner)
    own = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
    return types.MethodType(getattr(own, "__func__", own), owner)


def with_keywords(function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    """Call `function` with one configuration of a sweep."""
    return function(**keywords)


def come_back(module: str, qualname: str) -> Any:
    """Return the decorated function of that name on the caller's machine; elsewhere an empty one, for `fill`."""
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value if type(value).__module__ == "clusterfn.api.decorator" else Inside()


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
        # While the object is loaded, it has no function yet: without this check the lookup would recurse.
        if name == "function":
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
    # This import is late, because few calls have files, and it takes 3 ms.
    import pathlib

    return pathlib.Path(os.environ["CLUSTERFN_FILES"], digest, name)
