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


def is_a(obj: object, abstract: type) -> bool:
    """Return whether an object is of an abstract class, such as Mapping.

    An abstract class keeps the classes that it was asked about in sets. A metaclass with an equality or hash of its own
    may raise there, or have two classes taken for one: then the nearest base without such a metaclass is asked about.
    """
    kinds = type(obj).__mro__
    return issubclass(next(kind for kind in kinds if _is_plain(type(kind))), abstract)


def has_method(obj: object, name: str) -> bool:
    """Return whether an object's class or a base of it defines this; a metaclass defines it for the class alone."""
    return any(name in vars(kind) for kind in type(obj).__mro__)


def _is_plain(metaclass: "Any") -> bool:
    return metaclass.__eq__ is object.__eq__ and metaclass.__hash__ is object.__hash__


def signature_of(function: "Callable[..., Any]") -> "Optional[inspect.Signature]":
    """Return the signature of a callable itself, not of what it wraps; None if it has none or raises.

    A builtin may have none. An annotation that names a missing object raises, from Python 3.14 on.
    """
    # A worker needs nothing of this module, and its import would delay each start.
    import inspect

    try:
        return inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 - the user's code, as above
        return None
