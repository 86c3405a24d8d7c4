"""Read pickles of this version and of others: without byte code, and with what has moved since."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudpickle import cloudpickle as _core
else:
    from .cloudpickle import cloudpickle as _core


def loads(data: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Load a pickle made by `Pickler`."""
    return _load(Unpickler, data, list(buffers))


def _load(reader: Callable[..., pickle.Unpickler], data: bytes | memoryview, buffers: list[Any]) -> Any:
    return reader(io.BytesIO(data), buffers=buffers).load()


class Unpickler(pickle.Unpickler):
    """Reads a pickle, and looks elsewhere for what another version of a package keeps in another place."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as missing:
            # This import is late, because nearly every pickle finds what it names.
            from . import moved

            return moved.search(super().find_class, module, name, missing)


def loads_without_code(data: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Load a pickle of another minor version, whose byte code could crash this process.

    Raises:
        pickle.UnpicklingError: There is byte code in it.
    """
    return _load(WithoutCode, data, list(buffers))


class WithoutCode(Unpickler):
    """Reads a pickle that may hold no byte code."""

    def find_class(self, module: str, name: str) -> Any:
        def type_but_code(name: str) -> Any:
            if name == "CodeType":
                raise pickle.UnpicklingError("it holds byte code of another version of Python")
            return _core._builtin_type(name)

        value = super().find_class(module, name)
        return type_but_code if value is _core._builtin_type else value
