"""What each job's supervisor needs of `json`, `collections`, `contextlib` and `signal`, without loading these.

With what they load themselves (`re`, `enum`, `functools`), they take a third of the CPU time of a job's supervisor on
Python 3.6. Everything here behaves as the original. For mypy it is the original.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
    from collections import namedtuple as namedtuple
    from contextlib import suppress as suppress
    from typing import Any
else:
    import _signal as signal  # noqa: F401 - imported from here
    from _operator import itemgetter

    class suppress:
        """`contextlib.suppress`."""

        def __init__(self, *errors):
            self._errors = errors

        def __enter__(self):
            pass

        def __exit__(self, kind, error, trace):
            return kind is not None and issubclass(kind, self._errors)

    def namedtuple(name, fields, defaults=()):
        """`collections.namedtuple`, which compiles a whole module for each type in Python 3.6."""
        names, own = ", ".join(fields), {"__name__": name, "_make": tuple.__new__}
        new = eval("lambda _cls, %s: _make(_cls, (%s,))" % (names, names), own)
        new.__defaults__ = tuple(defaults)
        methods = {
            "__slots__": (), "__new__": new, "_fields": tuple(fields), "__repr__": _describe,
            "_asdict": lambda self: dict(zip(self._fields, self)),
            "_replace": lambda self, **changed: type(self)(**dict(self._asdict(), **changed)),
            "__getnewargs__": lambda self: tuple(self), "__module__": sys._getframe(1).f_globals["__name__"],
        }  # fmt: skip
        methods.update((field, property(itemgetter(place))) for place, field in enumerate(fields))
        return type(name, (tuple,), methods)

    def _describe(self):
        return "%s(%s)" % (type(self).__name__, ", ".join("%s=%r" % field for field in zip(self._fields, self)))


class _Rules:
    """The settings of `json.loads`, as the C half asks for them."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_int, parse_float, parse_constant = int, float, float


try:
    import _json

    _scan = _json.make_scanner(_Rules)  # type: ignore[arg-type]
    _make_encoder, _quote = _json.make_encoder, _json.encode_basestring_ascii
except (ImportError, AttributeError, TypeError):
    # Another Python than CPython has no C half, and that of a later one may ask for further settings.
    _scan = None  # type: ignore[assignment]


def loads(text: str) -> "Any":
    """As `json.loads`.

    Raises:
        ValueError: It is not JSON.
    """
    if _scan is not None:
        try:
            value, end = _scan(text, 0)
        except StopIteration:
            # It begins with a blank, or is not JSON.
            end = -1
        if end == len(text) or end > 0 and text[end:] == "\n":
            return value
    import json

    return json.loads(text)


def dumps(value: "Any") -> str:
    """As `json.dumps`.

    Raises:
        TypeError, ValueError: It cannot be written as JSON.
    """
    if _scan is not None:
        return "".join(_make_encoder({}, _reject, _quote, None, ": ", ", ", False, False, True)(value, 0))
    import json

    return json.dumps(value)


def _reject(value: "Any") -> "Any":
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)
