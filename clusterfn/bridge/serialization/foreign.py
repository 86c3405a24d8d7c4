"""Call code of the user's that may raise anything: constructors, __reduce__, __repr__, __str__.

Such a failure is expected: the caller has another way, or reports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attempt(call: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Return what `call(*args)` returned and None, or None and what it raised; let Ctrl-C pass."""
    try:
        return call(*args), None
    except KeyboardInterrupt:
        raise
    except BaseException as reason:  # noqa: BLE001 - see the first lines of this file
        return None, reason
