"""Find what has moved since a pickle was written: another version of a package keeps its objects elsewhere."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

# These are beginnings of module names in one version and another. Each is looked for in place of the other.
_MODULES = (
    ("pandas.core.indexes.base", "pandas.core.indexes.numeric"),
    ("sqlalchemy.util._immutabledict_cy", "sqlalchemy.cyextension.immutabledict"),
    # Values of jobs that an earlier version of clusterfn sent name its own modules.
    (f"{__package__}.arrays", f"{__package__}.pickler"),
    (f"{__package__}.classes", f"{__package__}.pickler"),
)


def search(find: Callable[[str, str], Any], module: str, name: str, missing: Exception) -> Any:
    """Return what other versions have elsewhere, by `find(module, name)`.

    Raises:
        missing: It is nowhere.
    """
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
