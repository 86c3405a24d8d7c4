"""Extend cloudpickle by the types that must travel in their own way.

numpy arrays are sent as dtype, shape and buffer, because a pickle of numpy 2 does not load under numpy 1. For torch and
faiss see `tensors` and `indexes`. Classes of the caller's `__main__` come back as the caller's own.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import io
import operator
import pickle
import sys
import types
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Optional

if TYPE_CHECKING:
    import cloudpickle
    from cloudpickle import cloudpickle as _core

    from .hints import Hints
else:
    from . import cloudpickle
    from .cloudpickle import cloudpickle as _core

from . import c_types, stand_ins, standard_library

VERSION: str = cloudpickle.__version__
Version = Optional["tuple[int, int]"]  # of Python, (major, minor); None is that of this process
HERE = (sys.version_info[0], sys.version_info[1])
notes: list[str] = []  # what the objects pickled so far will be elsewhere that they are not here


_FILENAME = 10  # its place among the arguments of types.CodeType, in every Python since 3.8


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Keep the name of the file, without which tracebacks show no lines; cloudpickle 3.1.3 leaves it out."""
    make, args = _core._code_reduce(code)
    return make, (*args[:_FILENAME], code.co_filename, *args[_FILENAME + 1 :])


class LibraryMade(Exception):
    """A class that a library's metaclass or decorator made: another version of the library may not read its parts."""


class Pickler(_core.Pickler):  # type: ignore[misc]
    """Pickles with protocol 5.

    Args:
        file: Takes the pickle.
        buffer_callback: Called with each large buffer; false keeps it out of the pickle.
        on_object: Sees each object that is not plain data; what it returns, unless NotImplemented, is its reduction.
        in_parts: Whether a class goes in parts whatever made it; else one that a library made raises LibraryMade.
        hints: Finds what names in annotations mean, which then goes with their functions and classes.
    """

    dispatch_table = ChainMap({types.CodeType: _reduce_code}, *_core.Pickler.dispatch_table.maps)

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
        self.kinds: dict[int, type] = {}  # the classes of what was pickled, by their ids: a class may have no hash

    def reducer_override(self, obj: Any) -> Any:
        if self._on_object is not None:
            reduction = self._on_object(obj)
            if reduction is not NotImplemented:
                return reduction
        is_class = issubclass(type(obj), type)  # up to Python 3.10, `list[int]` says that it is a class
        kind = obj if is_class else type(obj)
        self.kinds[id(kind)] = kind
        if is_class:
            reduction = c_types.reduce_metaclass(obj)
            if reduction is not NotImplemented:
                return reduction
            if obj.__module__ == "numpy.rec" or (obj.__module__, obj.__name__) == ("numpy", "bool"):
                # Of numpy 2 alone; all have the classes of records at the top, and this one as `bool_`.
                return class_of_numpy, ("bool_" if obj.__name__ == "bool" else obj.__name__,)
            generic = vars(obj).get("__pydantic_generic_metadata__") or {}
            if generic.get("args"):  # a model such as Page[int], which pydantic makes of Page
                return operator.getitem, (generic["origin"], generic["args"])
            return self.reduce_class(obj, super().reducer_override(obj))
        reducers = (_reduce_of_package, _reduce_named, _reduce_figure, _reduce_sentinel, _reduce_exception)
        for reduce in (*reducers, self._reduce_of_library, _reduce_guarded):
            reduction = reduce(obj)
            if reduction is not NotImplemented:
                return reduction
        return super().reducer_override(obj)

    def _reduce_of_library(self, obj: Any) -> Any:
        return standard_library.reduce(obj, self.target, _has_a_home)

    def _dynamic_function_reduce(self, func: types.FunctionType) -> tuple[Any, ...]:
        """Add the globals that only a class body in the function reads, which cloudpickle overlooks."""
        reduction: tuple[Any, ...] = super()._dynamic_function_reduce(func)
        scope = func.__globals__
        for name in (name for body in class_bodies(func.__code__) for name in global_names(body)):
            if name in scope and name != "__builtins__":
                reduction[2][1]["__globals__"].setdefault(name, scope[name])
        for name, value in self.hints_of(func, scope).items():
            reduction[2][1]["__globals__"].setdefault(name, value)
        submodules = reduction[2][1]["_cloudpickle_submodules"]
        reduction[2][1]["_cloudpickle_submodules"] = [stand_ins.Submodule(each.__name__) for each in submodules]
        return (*reduction[:5], fill_function)

    def hints_of(self, owner: Any, scope: Mapping[str, Any], packages: bool = False) -> dict[str, Any]:
        """Return what the names in the annotations of a function or class mean."""
        if self._hints is None:
            return {}
        return self._hints.of(owner, scope, _core._should_pickle_by_reference, packages)

    def reduce_class(self, cls: type, reduction: Any) -> Any:
        """Reduce a class, for which cloudpickle returns `reduction`."""
        if reduction is not NotImplemented and c_types.is_made_by_ctypes(cls):
            reduction = c_types.reduce(cls, reduction)
        reduced = _by_value(cls, reduction)
        if reduced is not reduction and not self._in_parts and is_made_by_library(cls):
            raise LibraryMade(cls)
        if reduced is not reduction:
            named = self.hints_of(cls, vars(sys.modules.get(cls.__module__, object)))
            if named:
                reduced = (*reduced[:2], (*reduced[2], named), *reduced[3:])
        return reduced


_OPTIMIZED = 1  # a flag of the code of functions; other code runs in place


def class_bodies(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the bodies of classes in a code; Python 3.12 puts that of a generic class into a code of its own."""
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            if not part.co_flags & _OPTIMIZED or part.co_name.startswith("<generic"):
                yield part
            yield from class_bodies(part)


def global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a code looks up among its globals."""
    for instruction in dis.get_instructions(code):
        if "GLOBAL" in instruction.opname or instruction.opname == "LOAD_NAME":
            yield instruction.argval


def dumps(obj: object) -> bytes:
    """Pickle `obj`, with all its buffers in the pickle."""
    out = io.BytesIO()
    Pickler(out).dump(obj)
    return out.getvalue()


def loads(data: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Load a pickle made by `Pickler`."""
    return _load(pickle.Unpickler, data, list(buffers))


def _load(reader: Callable[..., pickle.Unpickler], data: bytes | memoryview, buffers: list[Any]) -> Any:
    try:
        return reader(io.BytesIO(data), buffers=buffers).load()
    except (ImportError, AttributeError) as missing:
        if isinstance(missing, AttributeError) and not str(missing).startswith("Can't get attribute"):
            raise  # of the user's own code
        from . import moved  # here: nearly every pickle finds what it names

        try:
            return moved.searching(reader)(io.BytesIO(data), buffers=buffers).load()
        except (ImportError, AttributeError):
            raise missing from None


def loads_without_code(data: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Load a pickle of another minor version, whose byte code could crash this process.

    Raises:
        pickle.UnpicklingError: There is byte code in it.
    """
    return _load(WithoutCode, data, list(buffers))


class WithoutCode(pickle.Unpickler):
    """Reads a pickle that may hold no byte code."""

    def find_class(self, module: str, name: str) -> Any:
        def type_but_code(name: str) -> Any:
            if name == "CodeType":
                raise pickle.UnpicklingError("it holds byte code of another version of Python")
            return _core._builtin_type(name)

        found = super().find_class(module, name)
        return type_but_code if found is _core._builtin_type else found


# A class that is sent by value is made once in a process and never changed again. That holds for the caller's own, and
# for one of which objects that arrived earlier are instances.
_unfilled: weakref.WeakSet[type] = weakref.WeakSet()
_functions: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()  # those that came by value


_of_annotations: dict[str, Any] = {}


def remember(named: Mapping[str, Any]) -> None:
    """Keep what names mean in the annotations of a class: they are looked up in its module, which is `__main__`."""
    _of_annotations.update(stand_ins.present(named))


def fill_function(function: types.FunctionType, state: Any) -> None:
    """Give a new function its globals and attributes."""
    _core._function_setstate(function, state)
    _functions.add(function)


def of_main() -> dict[str, Any]:
    """Return the functions and classes that came by value from the top level of the caller's `__main__`, by name."""
    classes = [each for each in _core._DYNAMIC_CLASS_TRACKER_BY_ID.values() if isinstance(each, type)]
    came: list[Any] = [*_functions, *classes]
    found = {each.__name__: each for each in came if each.__module__ == "__main__" and each.__qualname__.isidentifier()}
    return {**_of_annotations, **found}


def _by_value(cls: type, reduction: Any) -> Any:
    makers = (_core._make_skeleton_class, _core._make_skeleton_enum)
    if reduction is NotImplemented or reduction[0] not in makers:
        return reduction
    make, args, state = reduction[:3]
    if make is makers[0] and "__slots__" in vars(cls) and not issubclass(cls, tuple):
        args[3]["__slots__"] = vars(cls)["__slots__"]  # set later it would make no slots
    if make is makers[1]:
        members: Any = cls
        for name, member in members.__members__.items():
            # What the enumeration's own __init__ set: that method does not exist when the members are rebuilt.
            own = {key: value for key, value in getattr(member, "__dict__", {}).items() if not key.startswith("_")}
            if own:
                state[1][name] = own
    return remake_class, (cls.__module__, cls.__qualname__, make, args), state, None, None, fill_class


def remake_class(module: str | None, qualname: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """Return the class of that name in this process's `__main__`, or the one made before, or a new and empty one."""
    known = known_class(module, qualname, args[-2])
    if known is None:
        known = make(*args)
        known.__qualname__ = qualname
        _unfilled.add(known)
    return known


def known_class(module: str | None, qualname: str, tracker: str) -> type | None:
    """Return the class of that name in this process's `__main__`, or the one pickled or loaded under that id."""
    if module == "__main__" and "<locals>" not in qualname:  # a worker's `__main__` is empty
        found: Any = sys.modules.get("__main__")
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and found.__module__ == "__main__":
            return found
    made: type | None = _core._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
    return made


def fill_class(cls: type, state: Any) -> None:
    """Give a class that `remake_class` made its attributes, once."""
    for named in state[2:]:
        remember(named)
    if cls in _unfilled:
        _unfilled.discard(cls)
        _core._class_setstate(cls, state[:2])
        members: Any = cls  # of an enumeration; others have none
        for name, own in state[1].items():
            members[name].__dict__.update(own)


def fill_made(cls: Any, attributes: Any) -> None:
    """Give a class that a call made the attributes that were set on it later, once."""
    if cls in _unfilled:
        _unfilled.discard(cls)
        for name, value in attributes.items():
            type.__setattr__(cls, name, value)


def is_made_by_library(cls: type) -> bool:
    """Return whether an installed package, or `TypedDict`, made a class or something that the class keeps."""
    if type(cls).__name__ == "_TypedDictMeta":
        return True
    made = [type(cls)]
    for value in list(vars(cls).values()):
        parts = value.values() if type(value) is dict else value if isinstance(value, tuple) else ()
        made += [type(value), *(type(part) for part in list(parts)[:_PARTS])]
    return any(_is_installed(home.partition(".")[0]) for home in {each.__module__ for each in made})


_PARTS = 20  # of a tuple or dict; they are mostly of one kind


def _is_installed(package: str) -> bool:
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


_SPECIAL_TYPES = {"NewType": ("__name__", "__supertype__"), "ParamSpec": ("__name__",), "TypeVarTuple": ("__name__",)}


def _reduce_named(obj: Any) -> Any:
    """Reduce objects that pickle knows only by name, if they have none that can be imported."""
    kind = type(obj)
    if kind is types.FunctionType and "raw_function" in vars(obj):
        from . import models

        return models.reduce_function(obj)
    if kind.__name__ == "Inside" and kind.__module__ == f"{__package__}.stand_ins":
        reduction: tuple[Any, ...] = obj.on_its_way_back()
        return reduction
    if kind.__module__ == "clusterfn.api.decorator" and kind.__name__ in ("ClusterFunction", "BoundFunction"):
        going: tuple[Any, ...] = obj._on_its_way()
        return going
    if kind is io.TextIOWrapper and obj is not sys.stdout and obj is not sys.stderr:
        raise TypeError("cannot pickle '_io.TextIOWrapper' object")  # cloudpickle sends all that it holds
    if kind is functools.cached_property:  # up to Python 3.11 it holds a lock
        return kind, (obj.func,), {name: value for name, value in vars(obj).items() if name != "lock"}
    if kind is functools._lru_cache_wrapper and not _has_a_home(obj):
        options = obj.cache_parameters()
        return cached, (obj.__wrapped__, options["maxsize"], options["typed"])
    if kind.__module__ == "typing" and kind.__name__ in _SPECIAL_TYPES and not _has_a_home(obj):
        return kind, tuple(getattr(obj, name) for name in _SPECIAL_TYPES[kind.__name__])
    return NotImplemented


def _reduce_figure(obj: Any) -> Any:
    # Without its place in pyplot, by which a notebook would show it twice, and a window open in a thread of ours.
    figure = sys.modules.get("matplotlib.figure")
    if figure is None or not isinstance(obj, figure.Figure):
        return NotImplemented
    reduction = obj.__reduce_ex__(5)
    if isinstance(reduction[2], dict):
        reduction[2].pop("_restore_to_pylab", None)
    return reduction


def _reduce_sentinel(obj: Any) -> Any:
    """Reduce an object without any state that a library compares by identity to its name in the library."""
    kind: Any = type(obj)
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    if not plain or kind.__eq__ is not object.__eq__ or not kind.__flags__ & HEAP:
        return NotImplemented
    if kind.__module__ in ("__main__", None) or _has_state(obj):
        return NotImplemented
    if any(vars(each).get("__slots__") for each in kind.__mro__):
        return NotImplemented
    home = stand_ins.homes_of(kind, len(sys.modules)).get(id(obj))
    return NotImplemented if home is None else (stand_ins.sentinel, (*home, kind))


def _reduce_guarded(obj: Any) -> Any:
    """Reduce an object whose class answers for attributes itself, so that its state is set past these answers.

    While an object is empty, a `__getattr__` that reads another attribute never ends, and pickle asks it for
    `__setstate__`; a frozen class with slots refuses its state.
    """
    kind: Any = type(obj)
    asked = isinstance(getattr(kind, "__getattr__", None), types.FunctionType)
    if not (asked or isinstance(kind.__setattr__, types.FunctionType)) or hasattr(kind, "__setstate__"):
        return NotImplemented
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return NotImplemented
    if kind in copyreg.dispatch_table or not kind.__flags__ & HEAP:
        return NotImplemented
    reduction = obj.__reduce_ex__(5)
    if not isinstance(reduction, tuple) or len(reduction) < 3 or reduction[2] is None:
        return NotImplemented
    return (*reduction, None, None)[:5] + (stand_ins.set_state,)


def _has_state(obj: Any) -> bool:
    try:
        return bool(object.__getattribute__(obj, "__dict__"))  # past a __getattr__ of the user's
    except AttributeError:
        return False


HEAP = 1 << 9  # a flag of types that a class statement made, and of some others


def _reduce_exception(obj: Any) -> Any:
    """Reduce an exception to its parts where a pickle of it would call a constructor of the user's with its `args`."""
    if not isinstance(obj, BaseException):
        return NotImplemented
    from . import exception_parts  # here: few values hold one

    return exception_parts.reduce(obj)


def _has_a_home(obj: Any) -> bool:
    found = _core._lookup_module_and_qualname(obj, getattr(obj, "__qualname__", None))
    return found is not None and not _core._is_registered_pickle_by_value(found[0])


def cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """Wrap the function by lru_cache, with an empty cache."""
    return functools.lru_cache(maxsize, typed)(function)


def _reduce_of_package(obj: Any) -> Any:
    """Reduce objects of numpy, pandas, pydantic, torch and faiss, which are imported, as the object exists."""
    home = type(obj).__module__ or ""  # a class may have none
    numpy = sys.modules.get("numpy")
    bound = type(obj) in (types.BuiltinFunctionType, types.MethodType) and "numpy.random" in sys.modules
    if home.startswith("numpy.random") or bound:
        from . import numpy_random

        return numpy_random.reduce(obj)
    if home in ("numpy", "numpy.dtypes") or isinstance(obj, getattr(numpy, "ndarray", ())):
        return _reduce_numpy(obj)
    if home.partition(".")[0] == "torch":
        from . import tensors

        return tensors.reduce(obj, note)
    if home.startswith(("pydantic.", "pydantic_core")):
        from . import models

        return models.reduce(obj)
    if home.partition(".")[0] == "pandas":
        from . import tables

        return tables.reduce(obj)
    if home.startswith("faiss."):
        from . import indexes

        return indexes.reduce(obj, note)
    return NotImplemented


def note(sentence: str) -> None:
    """Remember what a pickle changes; each sentence once."""
    if sentence not in notes:
        notes.append(sentence)


def _reduce_numpy(obj: Any) -> Any:
    numpy = sys.modules["numpy"]
    if type(obj) is numpy.finfo:
        return numpy.finfo, (obj.dtype,)
    if isinstance(obj, numpy.dtype) and obj.isalignedstruct:
        return (numpy.dtype, (obj.subdtype,)) if obj.subdtype else _reduce_aligned(obj)
    if not isinstance(obj, (numpy.ndarray, numpy.generic)):
        return NotImplemented
    dtype = _portable(obj.dtype, numpy)
    if type(obj) is numpy.ndarray and dtype is not None:
        order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
        flat = pickle.PickleBuffer(obj.ravel(order).view("u1")) if obj.size else b""
        return array, (flat, dtype, obj.shape, order)
    if isinstance(obj, numpy.generic) and dtype is not None:
        return scalar, (obj.tobytes(), dtype)
    if isinstance(obj, (numpy.str_, numpy.bytes_)):  # an empty one
        return type(obj), ()
    # Arrays of objects and numpy's subclasses go as numpy reduces them, but for a name that numpy 1 lacks.
    if not isinstance(obj, numpy.ndarray) or type(obj).__reduce_ex__ is not numpy.ndarray.__reduce_ex__:
        return NotImplemented
    if type(obj).__name__ == "chararray" and obj.dtype.char in "SU":  # numpy makes none without its texts
        return as_characters, (obj.view(numpy.ndarray),)
    reduction = obj.__reduce__()
    return (unfilled_array, *reduction[1:]) if reduction[0].__name__ == "_reconstruct" else reduction


def _reduce_aligned(dtype: Any) -> Any:
    """Reduce a dtype to its fields: numpy 1 and 2 misread the flags that the other one pickles."""
    fields = [dtype.fields[name] for name in dtype.names]
    layout = {
        "names": list(dtype.names),
        "formats": [field[0] for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
    }
    return aligned, (layout, dict(dtype.metadata or {}))


def _portable(dtype: Any, numpy: Any) -> Any:
    """Return what makes this dtype again under any numpy; None if only numpy's own pickle does."""
    if dtype.hasobject or not dtype.itemsize:
        return None
    if dtype.names or dtype.subdtype:
        return dtype
    return dtype.str if dtype.isbuiltin != 2 and numpy.dtype(dtype.str) == dtype else None


def array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    """Rebuild a numpy array over `buffer`, or over a copy of read-only bytes: the array must be writable."""
    import numpy

    flat = numpy.frombuffer(buffer, numpy.dtype(dtype))
    return (flat if flat.flags.writeable else flat.copy()).reshape(shape, order=order)


def aligned(fields: Any, metadata: Any) -> Any:
    """Rebuild an aligned structure of numpy."""
    import numpy

    return numpy.dtype(fields, align=True, **({"metadata": metadata} if metadata else {}))


def unfilled_array(cls: Any, shape: tuple[int, ...], kind: Any) -> Any:
    """Make a numpy array whose content comes as its state."""
    import numpy

    return numpy.ndarray.__new__(cls, shape, kind)


def as_characters(texts: Any) -> Any:
    """Make numpy's array of characters of one of texts."""
    import numpy

    return texts.view(numpy.char.chararray)


def class_of_numpy(name: str) -> Any:
    """Return the class that numpy has under this name."""
    import numpy

    return getattr(numpy, name)


def scalar(data: bytes, dtype: Any) -> Any:
    """Rebuild a numpy scalar."""
    import numpy

    return numpy.frombuffer(data, numpy.dtype(dtype))[0]
