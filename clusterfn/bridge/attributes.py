"""Look at a user's object without being broken by it: its `__getattr__` and its properties may raise anything."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable
    from typing import Any, Optional


def attribute(obj: object, name: str, default: "Any" = None) -> "Any":
    """Return an attribute of the object, or the default if it has none or raises."""
    try:
        return getattr(obj, name, default)
    except Exception:  # noqa: BLE001 - the user's code, which may raise anything
        return default


def signature_of(function: "Callable[..., Any]") -> "Optional[inspect.Signature]":
    """Return the signature of a callable itself, not of what it wraps; None if it has none or raises.

    A builtin may have none. An annotation that names a missing object raises, from Python 3.14 on.
    """
    import inspect  # here: a worker needs none of it

    try:
        return inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 - the user's code, as above
        return None
