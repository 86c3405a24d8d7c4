"""What a function or a value is, as a digest that every process computes alike.

Pickles are no help: cloudpickle's differ between processes (sets, identities of shared objects, marks of classes). So
the structure is walked. A function is its byte code, its constants, defaults and closure, and in turn the globals that
it names. If a module of the user has it under its name, it is that name, and the source of the module and its imports.
Of the modules of others the name and version count.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clusterfn.api.decorator import ClusterFunction
from clusterfn.hosts import serialization
from clusterfn.packing import payload
from clusterfn.packing.files import Directory, File, shipment
from clusterfn.packing.project import modules as own_modules

_PLAIN = {id(each) for each in (type(None), bool, int, float, complex, str, type(Ellipsis), type(NotImplemented))}
_ROUTINES = (
    types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType,
)  # fmt: skip
# These attributes say where and how a class was made, and not what it does.
_NOT_CONTENT = frozenset(["__dict__", "__weakref__", "__module__", "__firstlineno__", "_abc_impl", "__annotate_func__"])


class Unstable(Exception):
    """Something in it has no content that could be compared; the message says what."""


def fingerprint(*objects: Any) -> str:
    """Return one digest, 64 hex digits, of all of them.

    Raises:
        Unstable: Something in them is nothing but itself: a lock, an open file, a connection.

    Example:
        >>> fingerprint({"a", "b"}) == fingerprint({"b", "a"}), fingerprint([1]) == fingerprint([1.0])
        (True, False)
    """
    walk = _Walk()
    try:
        digests = [walk.digest(each) for each in objects]
    except RecursionError:
        raise Unstable("it is nested too deeply") from None
    sources, compiled = own_modules.collect(walk.modules)
    built = [f"{each.name} {each.extension.stat().st_mtime_ns}".encode() for each in compiled]
    return _joined("whole", [*digests, *built, sources.digest.encode() if sources else b""]).hex()


def _joined(kind: str, parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(b"%d " % len(part) + part)
    return digest.digest()


class _Walk:
    """One walk through some objects; `modules` are the user's own that it met."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._digests: dict[int, tuple[Any, bytes]] = {}
        self._open: dict[int, int] = {}

    def digest(self, obj: Any) -> bytes:
        """Return the digest of one object; one that contains itself counts by how far above it is."""
        if type(obj) is bytes:
            return _joined("bytes", [obj])
        # The types are compared by id, because a metaclass may define equality itself or have no hash.
        if id(type(obj)) in _PLAIN:
            return _joined(type(obj).__name__, [repr(obj).encode("utf-8", "surrogatepass")])
        if id(obj) in self._digests:
            return self._digests[id(obj)][1]
        if id(obj) in self._open:
            return _joined("above", [b"%d" % (len(self._open) - self._open[id(obj)])])
        self._open[id(obj)] = len(self._open)
        compose = _EXACT.get(id(type(obj))) or next((each for kinds, each in _KINDS if isinstance(obj, kinds)), None)
        if compose is None and "torch" in sys.modules and isinstance(obj, sys.modules["torch"].Tensor):
            compose = _tensor
        digest = _joined(compose.__name__, compose(self, obj)) if compose else _joined("reduced", self._reduced(obj))
        del self._open[id(obj)]
        # The object is kept with its digest, so that no other object can get its id during this walk.
        self._digests[id(obj)] = (obj, digest)
        return digest

    def all(self, objects: Iterable[Any]) -> list[bytes]:
        """Return the digest of each."""
        return [self.digest(each) for each in objects]

    def pairs(self, mapping: Mapping[Any, Any]) -> list[bytes]:
        """Return the digests of a mapping's items, whatever their order."""
        return sorted(self.digest(each) for each in mapping.items())

    def _reduced(self, obj: Any) -> list[bytes]:
        """Describe an object by what pickle would make it from."""
        try:
            registered = serialization.part("by_identity").registered(type(obj))
            parts: Any = registered(obj) if registered else obj.__reduce_ex__(4)
        except Exception as error:
            # The user's __reduce__ may raise anything.
            raise Unstable(f"{type(obj).__name__} cannot be compared by content: {error}") from error
        if isinstance(parts, str):
            return self.all([type(obj), parts])
        make, args, state, items, entries = (*parts, None, None, None)[:5]
        return [self.digest(type(obj)), *self.all([make, args, state, *(items or ())]), *self.all(entries or ())]

    def note(self, name: str | None) -> None:
        """Count a module with its source, if it is one of the user's own."""
        if name and own_modules.is_own(name):
            self.modules.add(name)

    def home(self, name: str) -> bytes:
        """Describe the module in which something is found by name: the user's own by its source, others by version."""
        self.note(name)
        package = sys.modules.get(name.partition(".")[0])
        return f"{name} {getattr(package, '__version__', '')}".encode()


def _tensor(walk: _Walk, obj: Any) -> list[bytes]:
    """Describe a tensor of PyTorch by its numbers: what pickle makes of it contains an address."""
    try:
        plain = obj.detach().cpu().contiguous()
        data = plain.reshape(-1).view(sys.modules["torch"].uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        # The tensor is sparse, or its numbers are of an unusual kind.
        raise Unstable(f"a tensor cannot be compared by content: {error}") from error
    return [walk.digest(type(obj)), f"{obj.dtype} {tuple(obj.shape)} {obj.requires_grad}".encode(), data]


def _sequence(walk: _Walk, obj: Any) -> list[bytes]:
    return [type(obj).__name__.encode(), *walk.all(obj)]


def _mapping(walk: _Walk, obj: Any) -> list[bytes]:
    """Keep its order: code that iterates over it depends on that."""
    return walk.all(obj.items())


def _unordered(walk: _Walk, obj: Any) -> list[bytes]:
    return sorted(walk.all(obj))


def _routine(walk: _Walk, obj: Any) -> list[bytes]:
    owner = getattr(obj, "__objclass__", None) or getattr(obj, "__self__", None)
    return [walk.home(str(getattr(obj, "__module__", ""))), obj.__qualname__.encode(), walk.digest(owner)]


def _content(walk: _Walk, obj: File | Directory) -> list[bytes]:
    item = shipment(obj)
    return [item.digest.encode(), item.name.encode()]


def _function(walk: _Walk, obj: types.FunctionType) -> list[bytes]:
    if payload.found_by_name(obj) is not None:
        return [walk.home(obj.__module__), obj.__qualname__.encode()]
    for name in payload.imports_inside(obj.__code__):
        walk.note(name or obj.__globals__.get("__package__"))
    used = {name: obj.__globals__[name] for name in sorted(_names(obj.__code__)) if name in obj.__globals__}
    closure = {}
    for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or ()):
        with contextlib.suppress(ValueError):
            # The variable of the closure has no value yet.
            closure[name] = cell.cell_contents
    return walk.all([obj.__code__, obj.__defaults__, obj.__kwdefaults__, used, closure, vars(obj)])


def _names(code: types.CodeType) -> set[str]:
    """Return the globals that a code object and those inside it name."""
    codes, names = serialization.part("code_parts").codes(code), serialization.part("pickler").global_names
    return {name for each in codes for name in names(each)} - {"__builtins__"}


def _code(walk: _Walk, obj: types.CodeType) -> list[bytes]:
    table = getattr(obj, "co_exceptiontable", b"")
    counts = (obj.co_argcount, obj.co_posonlyargcount, obj.co_kwonlyargcount, obj.co_flags, sys.version_info[:2])
    names = (obj.co_names, obj.co_varnames, obj.co_freevars, obj.co_cellvars)
    # Names of files and numbers of lines do not count, because a new comment changes them too.
    return walk.all([obj.co_code, obj.co_consts, table, counts, names])


def _class(walk: _Walk, obj: type) -> list[bytes]:
    by_name: Any = sys.modules.get(obj.__module__)
    for part in obj.__qualname__.split("."):
        by_name = getattr(by_name, part, None)
    if obj.__module__ != "__main__" and by_name is obj:
        return [walk.home(obj.__module__), obj.__qualname__.encode()]
    content = {name: value for name, value in vars(obj).items() if name not in _NOT_CONTENT}
    return [obj.__qualname__.encode(), *walk.all([type(obj), obj.__bases__]), *walk.pairs(content)]


_Compose = Callable[[_Walk, Any], "list[bytes]"]
# By the ids of the types, for the same reason as `_PLAIN`.
_EXACT: dict[int, _Compose] = {
    id(list): _sequence, id(tuple): _sequence, id(dict): _mapping, id(types.MappingProxyType): _mapping,
    id(set): _unordered, id(frozenset): _unordered,
}  # fmt: skip
_KINDS: list[tuple[Any, _Compose]] = [
    ((ClusterFunction, functools._lru_cache_wrapper), lambda walk, obj: [walk.digest(obj.__wrapped__)]),
    ((File, Directory), _content),
    (types.ModuleType, lambda walk, obj: [walk.home(obj.__name__), str(getattr(obj, "__version__", "")).encode()]),
    (types.FunctionType, _function),
    (types.MethodType, lambda walk, obj: walk.all([obj.__func__, obj.__self__])),
    (types.CodeType, _code),
    (_ROUTINES, _routine),
    (type, _class),
    ((classmethod, staticmethod), lambda walk, obj: [type(obj).__name__.encode(), walk.digest(obj.__func__)]),
    (property, lambda walk, obj: walk.all([obj.fget, obj.fset, obj.fdel])),
    (functools.cached_property, lambda walk, obj: [walk.digest(obj.func)]),
]
