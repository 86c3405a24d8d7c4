"""The one place that calls code of the user's which may raise anything: constructors, __reduce__, __repr__, __str__.

Such a failure is an answer, not an accident: the caller has another way, or reports it. Used by the rest of `wire`,
and by `outcome`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attempt(call: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """What `call(*args)` returned and None, or None and what it raised; Ctrl-C alone passes."""
    try:
        return call(*args), None
    except KeyboardInterrupt:
        raise
    except BaseException as reason:  # noqa: BLE001 - see the first lines of this file
        return None, reason
