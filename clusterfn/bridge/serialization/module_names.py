"""Let libraries find in the module of a class or function what its annotations name, while it is made again.

They look into the `__dict__` of that module, which on a host is another one.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def found_in_module(scope: dict[str, Any]) -> Iterator[None]:
    """Show these globals as the `__dict__` of their module, to this thread; to others it stays as it is."""
    module = sys.modules.get(str(scope.get("__name__")))
    if module is None:
        yield
        return
    with _looking:
        if "_scopes" not in vars(type(module)):
            object.__setattr__(module, "__class__", _kind_with_scopes(type(module)))
        kind: Any = type(module)
        mine = kind._scopes.setdefault(threading.get_ident(), [])
        mine.append(scope)
    try:
        yield
    finally:
        with _looking:
            mine.pop()
            if not any(kind._scopes.values()):
                object.__setattr__(module, "__class__", kind.__bases__[0])


_looking = threading.Lock()


def _kind_with_scopes(kind: type) -> type:
    """Return the class of a module whose `__dict__` is, to each thread, the globals of its statement."""
    scopes: dict[int, list[dict[str, Any]]] = {}

    def names(module: Any) -> dict[str, Any]:
        mine = scopes.get(threading.get_ident())
        own: dict[str, Any] = super(type(module), module).__dict__
        return mine[-1] if mine else own

    body = {"__module__": kind.__module__, "__dict__": property(names), "_scopes": scopes}
    return type(kind.__name__, (kind,), body)
