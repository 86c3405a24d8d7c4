"""Read pickles of this version and of others: without byte code, and with what has moved since."""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .classes import core


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
            return _search(super().find_class, module, name, missing)


def loads_without_code(data: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Load a pickle of another minor version; raise UnpicklingError for byte code, which could crash this process."""
    return _load(WithoutCode, data, list(buffers))


class WithoutCode(Unpickler):
    """Reads a pickle that may hold no byte code."""

    def find_class(self, module: str, name: str) -> Any:
        def type_but_code(name: str) -> Any:
            if name == "CodeType":
                raise pickle.UnpicklingError("it holds byte code of another version of Python")
            return core._builtin_type(name)

        value = super().find_class(module, name)
        return type_but_code if value is core._builtin_type else value


# These are beginnings of module names in one version and another. Each is looked for in place of the other.
_MODULES = (("pandas.core.indexes.base", "pandas.core.indexes.numeric"),)


def _search(find: Callable[[str, str], Any], module: str, name: str, missing: Exception) -> Any:
    """Return what other versions have elsewhere, by `find(module, name)`; raise `missing` if it is nowhere."""
    for place, other in _elsewhere(module, name):
        try:
            return find(place, other)
        except (ImportError, AttributeError):
            continue
    raise missing


def _elsewhere(module: str, name: str) -> Iterator[tuple[str, str]]:
    for one, other in [*_MODULES, *((new, old) for old, new in _MODULES)]:
        if module == one or module.startswith(f"{one}."):
            yield other + module[len(one) :], name
    parts = module.split(".")
    # A package made a module private or public, as with `numpy.core` and `numpy._core`.
    for place, part in enumerate(parts[1:], 1):
        plain = part.strip("_").replace("_impl", "")
        for other in {plain, f"_{plain}", f"_{plain}_impl"} - {part}:
            yield ".".join([*parts[:place], other, *parts[place + 1 :]]), name
    # The name may belong to a package but be none of its modules, as with `numpy.char`.
    for end in range(len(parts) - 1, 0, -1):
        inner = ".".join([*parts[end:], name])
        if _has(".".join(parts[:end]), inner):
            yield ".".join(parts[:end]), inner
    # A private module often offers its objects in a public module above it.
    for end in range(len(parts) - 1, 0, -1):
        if not parts[end].startswith("_"):
            return
        above = ".".join(parts[:end])
        if _has(above, name):
            yield above, name


def _has(module: str, name: str) -> bool:
    try:
        value: Any = importlib.import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is not None
