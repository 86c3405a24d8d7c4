"""Extend cloudpickle by the types that must travel in their own way.

Objects of packages have modules of their own: `arrays`, `tensors`, `tables`, `models` and others. Classes of the
caller's `__main__` come back as the caller's own: see `classes`. `unpickler` reads what this writes.
"""

from __future__ import annotations

import collections
import enum
import functools
import importlib
import io
import operator
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Optional

if TYPE_CHECKING:
    import cloudpickle

    from .hints import Hints
else:
    from . import cloudpickle

from . import (
    arrays,
    classes,
    code_parts,
    constructors,
    exception_parts,
    stand_ins,
    standard_library,
)
from .classes import core
from .hints import reduce_type

VERSION: str = cloudpickle.__version__
# (major, minor) of a Python; None is that of this process.
Version = Optional["tuple[int, int]"]
HERE = (sys.version_info[0], sys.version_info[1])
# Sentences about objects that change on their way, such as a tensor that leaves its GPU.
notes: list[str] = []


_submodules_of = core._find_imported_submodules


def _find_imported_submodules(code: types.CodeType, values: Iterable[Any]) -> list[types.ModuleType]:
    """Look among the modules only: cloudpickle asks each global whether it is one, which may raise anything."""
    modules = [value for value in values if issubclass(type(value), types.ModuleType)]
    return _submodules_of(code, modules)  # type: ignore[no-any-return]


# These changes are made in clusterfn's own copy of cloudpickle, so the user's cloudpickle stays as it is.
core._find_imported_submodules = _find_imported_submodules
# The file name has this place among the arguments of `types.CodeType` in every Python since 3.8.
_FILENAME = 10


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Keep the name of the file, without which tracebacks show no lines; cloudpickle 3.1.3 leaves it out."""
    make, args = core._code_reduce(code)
    return make, (*args[:_FILENAME], code.co_filename, *args[_FILENAME + 1 :])


class LibraryMade(Exception):
    """A class that a library's metaclass or decorator made: another version of the library may not read its parts."""


class Pickler(core.Pickler):  # type: ignore[misc]
    """Pickles with protocol 5.

    Args:
        file: Takes the pickle.
        buffer_callback: Called with each large buffer; false keeps it out of the pickle.
        on_object: Sees each object that is not plain data; what it returns, unless NotImplemented, is its reduction.
        in_parts: Whether a class goes in parts whatever made it; else one that a library made raises LibraryMade.
        hints: Finds what names in annotations mean, which then goes with their functions and classes.
    """

    dispatch_table = collections.ChainMap({types.CodeType: _reduce_code}, core.Pickler.dispatch_table)

    target = HERE

    def __init__(
        self,
        file: BinaryIO,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
        on_object: Callable[[object], Any] | None = None,
        *,
        in_parts: bool = True,
        hints: Hints | None = None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._hints = hints
        self._on_object = on_object
        self._in_parts = in_parts
        # Closure variables of functions, by their ids. One that several functions share must arrive as one.
        self._cells: dict[int, types.CellType] = {}
        self._registered = classes.copyreg_entries()
        # The classes of what was pickled, by their ids: a class may define no hash.
        self.kinds: dict[int, type] = {}

    def dump(self, obj: Any) -> None:
        if self._registered and self._hints is not None and classes.is_call(obj):
            # The entries may fail to pickle like annotations do, and then the call is pickled again without both.
            self._hints.used = True
            obj = stand_ins.MadeThere(classes.with_entries, obj, list(self._registered.items()))
        super().dump(obj)

    def reducer_override(self, obj: Any) -> Any:
        if self._on_object is not None:
            reduction = self._on_object(obj)
            if reduction is not NotImplemented:
                return reduction
        # `isinstance` says up to Python 3.10 that `list[int]` is a class.
        is_class = issubclass(type(obj), type)
        kind = obj if is_class else type(obj)
        self.kinds[id(kind)] = kind
        if is_class:
            return self._reduce_any_class(obj)
        if kind is types.FunctionType:
            reduction = self._reduce_of_library(obj)
            return super().reducer_override(obj) if reduction is NotImplemented else reduction
        if kind in self._registered:
            return NotImplemented
        if kind is types.CellType and id(obj) in self._cells:
            # The variable goes empty: each function that has it fills it.
            return types.CellType, ()
        of_errors = (exception_parts.reduce,) if issubclass(kind, BaseException) else ()
        of_members = (classes.reduce_member,) if issubclass(kind, enum.Enum) else ()
        for reduce in (
            _reduce_of_package,
            _reduce_named,
            _reduce_figure,
            _reduce_sentinel,
            *of_errors,
            self._reduce_method,
            self._reduce_of_library,
            *of_members,
            constructors.reduce,
            constructors.reduce_guarded,
            classes.reduce_wrapper,
        ):
            reduction = reduce(obj)
            if reduction is not NotImplemented:
                return reduction
        # `super()` would ask the object itself whether it is a function, and its code may raise anything.
        return NotImplemented

    def _reduce_any_class(self, cls: Any) -> Any:
        of_numpy = (arrays.reduce_class,) if str(cls.__module__).startswith("numpy") else ()
        for reduce_class in (*of_numpy, _reduce_type):
            reduction = reduce_class(cls)
            if reduction is not NotImplemented:
                return reduction
        generic = vars(cls).get("__pydantic_generic_metadata__") or {}
        # pydantic made this model from a generic one, as it makes Page[int] from Page.
        if generic.get("args"):
            return operator.getitem, (generic["origin"], generic["args"])
        return self.reduce_class(cls, super().reducer_override(cls))

    def _reduce_method(self, method: Any) -> Any:
        """Reduce a bound method to its object and name: its function may be elsewhere in another version."""
        if type(method) is not types.MethodType:
            return NotImplemented
        owner = method.__self__
        name = getattr(method.__func__, "__name__", "")
        cls: Any = owner if issubclass(type(owner), type) else type(owner)
        kind = next((base for base in cls.__mro__ if name in vars(base)), object)
        own = vars(kind).get(name)
        is_own = getattr(own, "__func__", own) is method.__func__ and self.has_methods(kind, owner)
        return (stand_ins.method_of, (owner, name)) if is_own else NotImplemented

    def has_methods(self, kind: type, owner: Any) -> bool:
        """Return whether a class will have its methods before this object of it is loaded."""
        return not classes.is_of_script(kind)

    def _reduce_of_library(self, obj: Any) -> Any:
        return standard_library.reduce(obj, classes.has_a_home)

    def _dynamic_function_reduce(self, func: types.FunctionType) -> tuple[Any, ...]:
        """Add the globals that only a class body in the function reads, which cloudpickle overlooks."""
        reduction: tuple[Any, ...] = super()._dynamic_function_reduce(func)
        scope = func.__globals__
        slots = reduction[2][1]
        if func.__closure__:
            self._cells.update((id(cell), cell) for cell in func.__closure__)
            reduction = (reduction[0], (*reduction[1][:4], func.__closure__), *reduction[2:])
            # The cells go with the function itself, and their content comes later: a closure may refer to its own
            # function.
            slots.update(__closure__=None, _contents=list(map(classes.content, func.__closure__)))
        for name in (name for body in code_parts.class_bodies(func.__code__) for name in code_parts.global_names(body)):
            if name in scope and name != "__builtins__":
                slots["__globals__"].setdefault(name, scope[name])
        for name, value in self.hints_of(func, scope).items():
            slots["__globals__"].setdefault(name, value)
        # `__type_params__` exists from Python 3.12 on.
        parameters = getattr(func, "__type_params__", ())
        if parameters:
            slots["__type_params__"] = parameters
        names = [_name_of_module(module) for module in slots["_cloudpickle_submodules"]]
        slots["_cloudpickle_submodules"] = [stand_ins.MadeThere(stand_ins.imported, name) for name in names]
        return (*reduction[:5], classes.fill_function)

    def hints_of(self, owner: Any, scope: Mapping[str, Any], packages: bool = False) -> dict[str, Any]:
        """Return what the names in the annotations of a function or class mean."""
        if self._hints is None:
            return {}
        return self._hints.of(owner, scope, core._should_pickle_by_reference, packages)

    def reduce_class(self, cls: type, reduction: Any) -> Any:
        """Reduce a class, for which cloudpickle returns `reduction`."""
        reduced = _by_value(cls, reduction)
        if reduced is not reduction and not self._in_parts and classes.is_made_by_library(cls):
            raise LibraryMade(cls)
        if reduced is not reduction:
            named = self.hints_of(cls, vars(sys.modules.get(cls.__module__, object)))
            if named:
                reduced = (*reduced[:2], (*reduced[2], named), *reduced[3:])
        return reduced


def dumps(obj: object) -> bytes:
    """Pickle `obj`, with all its buffers in the pickle."""
    out = io.BytesIO()
    Pickler(out).dump(obj)
    return out.getvalue()


def _name_of_module(module: Any) -> str:
    """Return the name by which it is imported: a module may have put an object in its place."""
    if issubclass(type(module), types.ModuleType):
        return str(module.__name__)
    return next(name for name, loaded in list(sys.modules.items()) if loaded is module)


def _by_value(cls: type, reduction: Any) -> Any:
    makers = (core._make_skeleton_class, core._make_skeleton_enum)
    if reduction is NotImplemented or reduction[0] not in makers:
        return reduction
    make, args, state = reduction[:3]
    if make is makers[0] and "__slots__" in vars(cls) and not issubclass(cls, tuple):
        # `__slots__` has no effect when it is set after the class is made.
        args[3]["__slots__"] = vars(cls)["__slots__"]
    if make is makers[1]:
        make, args, state = classes.reduce_enumeration(cls, args, state)
    return classes.remake_class, (cls.__module__, cls.__qualname__, make, args), state, None, None, classes.fill_class


_SPECIAL_TYPES = {"NewType": ("__name__", "__supertype__"), "ParamSpec": ("__name__",), "TypeVarTuple": ("__name__",)}


def _reduce_named(obj: Any) -> Any:
    """Reduce objects that pickle knows only by name, if they have none that can be imported."""
    kind = type(obj)
    if kind.__name__ == "Inside" and kind.__module__ == f"{__package__}.stand_ins":
        reduction: tuple[Any, ...] = obj.on_its_way_back()
        return reduction
    if kind.__module__ == "clusterfn.api.decorator" and kind.__name__ in ("ClusterFunction", "BoundFunction"):
        going: tuple[Any, ...] = obj._on_its_way()
        return going
    if kind is io.TextIOWrapper and obj is not sys.stdout and obj is not sys.stderr:
        # cloudpickle would read the whole file and send its content.
        raise TypeError("cannot pickle '_io.TextIOWrapper' object")
    if kind.__module__ == "ctypes" and kind.__name__ in ("CDLL", "PyDLL"):
        # cloudpickle would send the address of the library in this process.
        raise TypeError("cannot pickle an open C library: open it inside the function")
    # The object holds a lock up to Python 3.11.
    if kind is functools.cached_property:
        return kind, (obj.func,), {name: value for name, value in vars(obj).items() if name != "lock"}
    if kind is functools._lru_cache_wrapper and not classes.has_a_home(obj):
        options = obj.cache_parameters()
        return cached, (obj.__wrapped__, options["maxsize"], options["typed"])
    if kind.__module__ in ("typing", "typing_extensions"):
        reduction = _reduce_type(obj)
        if reduction is not NotImplemented:
            return reduction
    if kind.__module__ == "typing" and kind.__name__ in _SPECIAL_TYPES and not classes.has_a_home(obj):
        return kind, tuple(getattr(obj, name) for name in _SPECIAL_TYPES[kind.__name__])
    return NotImplemented


def _reduce_figure(obj: Any) -> Any:
    # The figure goes without its place in pyplot. With it, a notebook would show the figure twice, or a window would
    # open in a thread of clusterfn.
    figure = sys.modules.get("matplotlib.figure")
    if figure is None or not issubclass(type(obj), figure.Figure):
        return NotImplemented
    reduction = obj.__reduce_ex__(5)
    if isinstance(reduction[2], dict):
        reduction[2].pop("_restore_to_pylab", None)
    return reduction


def _reduce_type(obj: Any) -> Any:
    return reduce_type(obj) if classes.is_installed(getattr(obj, "__module__", None)) else NotImplemented


def _reduce_sentinel(obj: Any) -> Any:
    """Reduce an object without any state that a library compares by identity to its name in the library."""
    kind: Any = type(obj)
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    if not plain or kind.__eq__ is not object.__eq__ or not (kind.__flags__ & classes.HEAP or kind is object):
        return NotImplemented
    has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    if kind.__module__ in ("__main__", None) or has_slots or constructors.has_state(obj):
        return NotImplemented
    homes = stand_ins.homes_of(obj)
    return (stand_ins.sentinel, (*homes[0], kind, *homes[1:4])) if homes else NotImplemented


def cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """Wrap the function by lru_cache, with an empty cache."""
    return functools.lru_cache(maxsize, typed)(function)


# Which module here reduces the objects of a package, to a function of that module and facts that each version has. The
# packages of users do the same by `copyreg.pickle`. Each module is imported late, as few calls take such objects.
_OF_PACKAGES = {
    "numpy": "arrays",
    "torch": "tensors",
    "pandas": "tables",
    "faiss": "indexes",
}


def _reduce_of_package(obj: Any) -> Any:
    """Reduce an object of a package in the table, or of a class of the script below numpy's arrays."""
    kind = type(obj)
    # The class may have no module.
    name = _OF_PACKAGES.get((kind.__module__ or "").partition(".")[0])
    numpy = sys.modules.get("numpy")
    if name is None and numpy is not None and issubclass(kind, (*arrays.BOUND, getattr(numpy, "ndarray", kind))):
        name = "arrays"
    if name is None:
        return NotImplemented
    return importlib.import_module(f".{name}", __package__).reduce(obj, note)


def note(sentence: str) -> None:
    """Remember what a pickle changes; each sentence once."""
    if sentence not in notes:
        notes.append(sentence)
