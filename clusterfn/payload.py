"""A call as bytes: the function and its arguments, the modules and files they need, and the large buffers apart.

Everything that cannot travel is found here, before anything is sent, and named by its path. Sends nothing.
Called by `dispatch`; `decorator` asks how a decorated function is pickled.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterfn import modules, wire
from clusterfn.errors import PayloadError
from clusterfn.files import Directory, File, Shipment, shipment
from clusterfn.parcel import Parcel

_LARGE = 1 << 20
_MAX_SOURCE = 1 << 20


@dataclass(frozen=True)
class Payload:
    """One call, ready to travel.

    Attributes:
        data: The content of payload.pkl.
        blobs: SHA-256 -> bytes that travel by themselves, once.
        sources: The user's own modules, or None.
        shipments: Files and Directories among the arguments.
        edited: Modules whose file was changed since it was first sent.
    """

    data: bytes
    blobs: Mapping[str, memoryview]
    sources: Parcel | None
    shipments: tuple[Shipment, ...]
    edited: tuple[str, ...]


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Payload:
    """The call `function(*args, **kwargs)` as bytes.

    Raises:
        PayloadError: Part of it cannot travel; the message says which, by its path.
    """
    container = wire.part("container")
    needs = _Needs()
    call = (function, tuple(map(_apart, args)), {name: _apart(value) for name, value in kwargs.items()})
    try:
        packed = container.pack(call, needs.look)
    except PayloadError:
        raise
    except Exception as error:  # __reduce__ of the user's may raise anything
        raise _cannot_travel(function, args, kwargs, error) from error
    blobs = {index: hashlib.sha256(view).hexdigest() for index, view in enumerate(packed.buffers)}
    packed = replace(packed, blobs=blobs, sources=needs.texts)
    return Payload(
        data=b"".join(packed.pieces()),
        blobs={digest: packed.buffers[index] for index, digest in blobs.items()},
        sources=modules.sources(needs.modules),
        shipments=tuple(needs.shipments.values()),
        edited=tuple(modules.edited(needs.modules)),
    )


def reduce_decorated(function: Callable[..., Any]) -> tuple[Any, ...]:
    """How a decorated function is pickled: by its name if its module travels, else as the plain function inside."""
    stand_ins = wire.part("stand_ins")
    if _found_by_name(function) is not None:
        return stand_ins.by_name, (function.__module__, function.__qualname__)
    return stand_ins.Inside, (), {"function": function}


def _found_by_name(function: Any) -> Any:
    """What the function's module calls by the function's name, if that is the function or wraps it."""
    if function.__module__ in (None, "__main__") or "<" in function.__qualname__:
        return None
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found if found is function or getattr(found, "__wrapped__", None) is function else None


def _apart(value: Any) -> Any:
    return _Apart(value) if type(value) is bytes and len(value) >= _LARGE else value


class _Apart:
    """Large bytes as an argument: pickled beside the stream, so that they are sent once."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        import pickle

        return bytes, (pickle.PickleBuffer(self.value),)


class _Needs:
    """Watches the pickling of one call and notes the modules, files and sources that it needs."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.shipments: dict[tuple[str, str], Shipment] = {}
        self.texts: dict[str, str] = {}

    def look(self, obj: Any) -> Any:
        if isinstance(obj, (File, Directory)):
            return self._ship(obj)
        if isinstance(obj, types.FunctionType):
            return self._function(obj)
        name = obj.__name__ if isinstance(obj, types.ModuleType) else _module_of(obj)
        self._note(name)
        return NotImplemented

    def _note(self, name: str | None) -> None:
        if name and name not in self.modules and modules.is_own(name):
            self.modules.add(name)

    def _function(self, function: types.FunctionType) -> Any:
        found = _found_by_name(function)
        if found is None:
            self._by_value(function.__code__)
            return NotImplemented
        self._note(function.__module__)
        if found is function:
            return NotImplemented
        return wire.part("stand_ins").plain_by_name, (function.__module__, function.__qualname__)

    def _by_value(self, code: types.CodeType) -> None:
        for name in _names(code) & modules.candidates():
            self._note(name)
        if code.co_filename not in self.texts:
            text = "".join(linecache.getlines(code.co_filename))
            if 0 < len(text) <= _MAX_SOURCE:
                self.texts[code.co_filename] = text

    def _ship(self, path: File | Directory) -> tuple[Any, ...]:
        item = shipment(path)
        self.shipments[item.digest, item.name] = item
        return wire.part("stand_ins").path_of, (item.digest, item.name)


def _module_of(obj: Any) -> str | None:
    name = getattr(obj if isinstance(obj, type) else type(obj), "__module__", None)
    return name if isinstance(name, str) else None


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> frozenset[str]:
    """First parts of all names that a function and those inside it use: imports are among them."""
    names = {name.partition(".")[0] for name in code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return frozenset(names)


def _cannot_travel(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
) -> PayloadError:
    where = wire.part("unpicklable").where
    parts = [(getattr(function, "__name__", "function"), function), ("args", args), ("kwargs", dict(kwargs))]
    for name, part in parts:
        path = where(part, name)
        if not path.endswith(": cannot be pickled"):
            return PayloadError(
                f"the call cannot travel: {path}",
                stage="submit",
                hint="create it inside the function, or pass what it is made from",
            )
    return PayloadError(f"the call cannot travel: {error}", stage="submit")
