"""Classes and functions of the script that come by value: each is made once in a process, and never changed again.

That holds for the caller's own, and for a class of which objects that arrived earlier are instances.
"""

from __future__ import annotations

import copyreg
import enum
import importlib
import os
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudpickle import cloudpickle as _core
else:
    from .cloudpickle import cloudpickle as _core

from . import load_failure, stand_ins

# This copy of cloudpickle is clusterfn's own.
core = _core

# CPython sets this flag (Py_TPFLAGS_HEAPTYPE) on types that a class statement made, and on some others.
HEAP = 1 << 9
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")


def is_of_script(cls: type) -> bool:
    """Return whether a class goes by value: the other side cannot import it."""
    return bool(cls.__flags__ & HEAP) and not core._should_pickle_by_reference(cls)


def has_a_home(obj: Any) -> bool:
    """Return whether the other side can import an object by its name."""
    home = core._lookup_module_and_qualname(obj, getattr(obj, "__qualname__", None))
    return home is not None and not core._is_registered_pickle_by_value(home[0])


# The set holds the classes that have none of their attributes yet.
_unfilled: set[type] = set()
# The set holds the functions that came by value.
_functions: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


_of_annotations: dict[str, Any] = {}


def remember(named: Mapping[str, Any]) -> None:
    """Keep what names mean in the annotations of a class: they are looked up in its module, which is `__main__`."""
    _of_annotations.update(stand_ins.present(named))


def content(cell: types.CellType) -> list[Any]:
    """Return what a variable of a function holds, as a list of one; an empty one if it holds nothing yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def fill_function(function: types.FunctionType, state: Any) -> None:
    """Give a new function its globals and attributes, and its variables what they hold."""
    for cell, held in zip(function.__closure__ or (), state[1].pop("_contents", ())):
        for value in held:
            cell.cell_contents = value
    core._function_setstate(function, state)
    _functions.add(function)


def of_main() -> dict[str, Any]:
    """Return the functions and classes that came by value from the top level of the caller's `__main__`, by name."""
    classes = [value for value in core._DYNAMIC_CLASS_TRACKER_BY_ID.values() if isinstance(value, type)]
    objects: list[Any] = [*_functions, *classes]
    by_name = {obj.__name__: obj for obj in objects if obj.__module__ == "__main__" and obj.__qualname__.isidentifier()}
    return {**_of_annotations, **by_name}


def remake_class(module: str | None, qualname: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """Return the class of that name in this process's `__main__`, or the one made before, or a new and empty one."""
    existing = known_class(module, qualname, args[-2])
    if existing is None:
        existing = make(*args)
        existing.__qualname__ = qualname
        _unfilled.add(existing)
    return existing


def in_parts(cls: type, reduction: tuple[Any, ...]) -> tuple[Any, ...]:
    """Reduce a class that goes in parts with what its libraries are: other versions of them have other parts."""
    versions = {name: load_failure.version_of(name) for name in sorted(_libraries_of(cls))}
    return (remake_of_library, (versions, *reduction[1]), *reduction[2:]) if versions else reduction


def remake_of_library(
    versions: Mapping[str, str], module: str | None, qualname: str, make: Callable[..., type], args: tuple[Any, ...]
) -> type:
    """As `remake_class`; raise TypeError if a library of which it has parts has another version."""
    for name, version in versions.items():
        importlib.import_module(name)
        here = load_failure.version_of(name)
        if here.split(".")[:2] != version.split(".")[:2]:
            raise TypeError(f"the class {qualname} has parts of {name} {version}, and this is {name} {here}")
    return remake_class(module, qualname, make, args)


def known_class(module: str | None, qualname: str, tracker: str) -> type | None:
    """Return the class of that name in this process's `__main__`, or the one pickled or loaded under that id."""
    # A worker's `__main__` is empty, so it has the class only if the script itself runs here.
    if module == "__main__" and "<locals>" not in qualname:
        value: Any = sys.modules.get("__main__")
        for part in qualname.split("."):
            value = getattr(value, part, None)
        if isinstance(value, type) and value.__module__ == "__main__":
            return value
    cls: type | None = core._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
    return cls


def fill_class(cls: type, state: Any) -> None:
    """Give a class that `remake_class` made its attributes, once."""
    for named in state[2:]:
        remember(named)
    if cls in _unfilled:
        _unfilled.remove(cls)
        core._class_setstate(cls, state[:2])
        # Only members of an enumeration have such attributes; the dict is empty for other classes.
        members: Any = cls
        for name, own in state[1].items():
            members[name].__dict__.update(own)


def fill_made(cls: Any, attributes: Any) -> None:
    """Give a class that a call made the attributes that were set on it later, once."""
    if cls in _unfilled:
        _unfilled.remove(cls)
        set_attributes(cls, attributes)


def set_attributes(cls: Any, attributes: Mapping[str, Any]) -> None:
    """Set attributes of a class, past its metaclass; those that are slots in this version of Python stay slots."""
    for name, value in attributes.items():
        # Without slots, the class of the other version keeps the defaults of its fields under these names.
        if type(vars(cls).get(name)) is not types.MemberDescriptorType:
            type.__setattr__(cls, name, value)


def reduce_wrapper(obj: Any) -> Any:
    """Reduce an object that pickles by the name of the function of the script that it wraps.

    What `cachetools.cached` returns does so. The other side has nothing of that name.
    """
    kind = type(obj)
    if type(kind.__reduce__) is not types.FunctionType:
        return NotImplemented
    own = getattr(obj, "__dict__", None)
    if type(own) is not dict or "__wrapped__" not in own or has_a_home(obj) or not isinstance(obj.__reduce__(), str):
        return NotImplemented
    return stand_ins.new, (kind,), own, None, None, stand_ins.set_state


def is_call(obj: Any) -> bool:
    """Return whether an object is a function with its arguments, as a job gets them."""
    return type(obj) is tuple and len(obj) == 3 and type(obj[1]) is tuple and type(obj[2]) is dict


def copyreg_entries() -> dict[type, Any]:
    """Return the functions that the script has told `copyreg`, by their classes.

    The entries count in the job too, for what comes back. A module registers its own again
    where it is imported, with the objects of its version there.
    """
    of_script = {}
    for kind, function in list(copyreg.dispatch_table.items()):
        if isinstance(function, types.FunctionType):
            module = sys.modules.get(function.__module__)
            if module is None or function.__module__ == "__main__" or core._is_registered_pickle_by_value(module):
                of_script[kind] = function
    return of_script


def with_entries(whole: Any, entries: list[tuple[Any, Any]]) -> Any:
    """Register the entries of a call with `copyreg` here, except for classes that it knows."""
    for kind, function in entries:
        copyreg.dispatch_table.setdefault(kind, function)
    return whole


def is_made_by_library(cls: type) -> bool:
    """Return whether only its statement makes a class: by an installed package, or `TypedDict`, or as a proxy."""
    if type(cls).__name__ == "_TypedDictMeta" or any(isinstance(vars(cls).get(name), property) for name in _OF_TYPE):
        return True
    return bool(_libraries_of(cls))


def _libraries_of(cls: type) -> set[str]:
    """Return the installed packages whose objects are parts of a class."""
    kinds = [type(cls)]
    for value in list(vars(cls).values()):
        parts = list(value) if isinstance(value, tuple) else []
        if type(value) is dict:
            parts = list(value.values())
        kinds += [type(value), *(type(part) for part in parts[:_PARTS])]
    return {kind.__module__.partition(".")[0] for kind in kinds if is_installed(kind.__module__)}


# Setting one of these on a class changes the class itself: only its statement can give it a property of such a name.
_OF_TYPE = ("__class__", "__dict__", "__name__", "__qualname__", "__module__", "__bases__", "__mro__")
# The parts of a tuple or dict are mostly of one kind, so the first ones are enough.
_PARTS = 20


def is_installed(module: object) -> bool:
    """Return whether a module, by its name, is of an installed package; a script may lie anywhere."""
    package = module.partition(".")[0] if isinstance(module, str) else ""
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return package != "__main__" and ("site-packages" in file or "dist-packages" in file)


def is_of_library(file: str) -> bool:
    """Return whether it is a file of the standard library."""
    return file.startswith(_LIBRARY) and "site-packages" not in file


def reduce_decorated(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Reduce a decorated function for pickling: by its name if its module travels, else as the plain function."""
    if found_by_name(function) is not None:
        return stand_ins.by_name, (function.__module__, function.__qualname__)
    return stand_ins.Inside, (), {"function": function}


def found_by_name(function: Any) -> Any:
    """Return the function, or what wraps it, that the function's module has under its name; else None."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "<none>")
    if module in (None, "__main__") or "<" in qualname or goes_by_value(module):
        return None
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value if value is function or getattr(value, "__wrapped__", None) is function else None


def goes_by_value(module: str) -> bool:
    """Whether the user has registered a module, or a package around it, to be sent by value."""
    registered = core._PICKLE_BY_VALUE_MODULES
    parts = module.split(".")
    return any(".".join(parts[:length]) in registered for length in range(1, len(parts) + 1))


# The members have this place among the arguments of cloudpickle's `_make_skeleton_enum`.
_MEMBERS = 3


def reduce_member(obj: Any) -> Any:
    """Reduce a member to its class and name; NotImplemented for any other object."""
    kind: Any = type(obj)
    if not issubclass(kind, enum.Enum) or getattr(kind.__reduce_ex__, "__module__", "") != "enum":
        return NotImplemented
    name = obj._name_
    named = type(name) is str and kind._member_map_.get(name) is obj and is_of_script(kind)
    value = obj._value_ if isinstance(obj._value_, (int, str)) else None
    return (member, (kind, name, value)) if named else NotImplemented


def reduce_enumeration(cls: Any, args: tuple[Any, ...], state: tuple[dict[str, Any], Any]) -> tuple[Any, Any, Any]:
    """Complete what cloudpickle takes of an enumeration: the function that makes it, its arguments and its state."""
    members = {name: entry.value for name, entry in cls.__members__.items()}
    # `enum.member` exists from Python 3.11 on. It makes a member of a function, which would become a method.
    make: Any = getattr(enum, "member", lambda value: value)
    wrapped = {name: make(value) if hasattr(type(value), "__get__") else value for name, value in members.items()}
    own = {name: value for name, value in state[0].items() if name not in members}
    for name, entry in cls.__members__.items():
        # What the enumeration's own __init__ set: that method does not exist when the members are rebuilt.
        kept = {key: value for key, value in getattr(entry, "__dict__", {}).items() if not key.startswith("_")}
        if kept:
            state[1][name] = kept
    bases, *named = args[:_MEMBERS]
    return skeleton, (type(cls), bases, *named, wrapped, *args[_MEMBERS + 1 :]), (own, state[1])


def member(cls: Any, name: str, value: Any) -> Any:
    """Return the member of an enumeration that has this name; its statement may give it others there."""
    return cls._member_map_[name] if name in cls._member_map_ else cls(value)


def skeleton(
    metaclass: Any,
    bases: tuple[type, ...],
    name: str,
    qualname: str,
    members: dict[str, Any],
    module: str,
    tracker: str,
    extra: None,
) -> Any:
    """Make an enumeration with its members alone."""
    scope = metaclass.__prepare__(name, bases)
    for key, value in members.items():
        scope[key] = value
    cls = enum.EnumMeta.__new__(metaclass, name, bases, scope)
    cls.__module__, cls.__qualname__ = module, qualname
    return core._lookup_class_or_track(tracker, cls)
