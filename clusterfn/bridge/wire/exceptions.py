"""An exception with its whole chain as plain records, and back.

Each exception of the chain (cause, context, members of a group) is one record, so that one odd constructor does not
lose the others. Called by the worker (`to_records`, `summary`) and by `outcome` (`from_records`).
"""

from __future__ import annotations

import builtins
import os
import traceback
from collections.abc import Sequence
from typing import Any

from . import pickler
from .foreign import attempt

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MAX_RECORDS = 100
_MAX_STATE = 16 << 20


class CannotRebuild(Exception):
    """The exception's type does not exist here, or refuses to be made."""


def to_records(error: BaseException) -> list[dict[str, Any]]:
    """The chain as records; the first is `error` itself.

    A record refers to others by their place in the list. Past a hundred exceptions the rest is left out.
    """
    chain = _chain(error)
    places = {id(member): place for place, member in enumerate(chain)}
    return [_record(member, places) for member in chain]


def summary(error: BaseException) -> dict[str, str]:
    """Type, message and traceback of `error` as text, for people and for logs."""
    return {"type": _name(type(error)), "message": _message(error), "traceback": _traceback(error)}


def from_records(records: Sequence[dict[str, Any]]) -> BaseException:
    """The exception that `to_records` saw, with its own causes, contexts, notes and group members.

    Raises:
        CannotRebuild: The first record's exception cannot be made here; says why.
    """
    made: dict[int, BaseException] = {}
    error = _rebuild(records, 0, made)
    for place, member in list(made.items()):
        _link(member, records[place], records, made)
    return error


def _chain(error: BaseException) -> list[BaseException]:
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting and len(found) < _MAX_RECORDS:
        member = waiting.pop(0)
        if member is not None and id(member) not in found:
            found[id(member)] = member
            waiting += [member.__cause__, member.__context__, *_members(member)]
    return list(found.values())


def _members(error: BaseException) -> Sequence[BaseException]:
    group: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.11 and up
    return error.exceptions if isinstance(error, group) else ()


def _record(error: BaseException, places: dict[int, int]) -> dict[str, Any]:
    return {
        "type": _name(type(error)),
        "class": attempt(pickler.dumps, type(error))[0],
        "pickled": _round_trip(error),
        "args": [_dumps_or_repr(argument) for argument in error.args],
        "state": {name: _dumps_or_repr(value) for name, value in vars(error).items() if name != "__notes__"},
        "message": _message(error),
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
        "traceback": _traceback(error),
        "cause": places.get(id(error.__cause__)),
        "context": places.get(id(error.__context__)),
        "suppress": error.__suppress_context__,
        "members": [places.get(id(member)) for member in _members(error)],
    }


def _round_trip(error: BaseException) -> bytes | None:
    """The pickled exception, if what comes back is the same; a constructor that wants other arguments fails here."""
    if _members(error):
        return None
    data, _ = attempt(pickler.dumps, error)
    same, _ = attempt(_comes_back, data, error)
    return data if same and len(data) <= _MAX_STATE else None


def _comes_back(data: bytes, error: BaseException) -> bool:
    copy = pickler.loads(data)
    return type(copy) is type(error) and copy.args == error.args and str(copy) == str(error)


def _dumps_or_repr(value: object) -> bytes:
    """The pickled value; what cannot travel, or is very large, is stood in for by its repr."""
    data, _ = attempt(pickler.dumps, value)
    if data is None or len(data) > _MAX_STATE:
        shown, _ = attempt(repr, value)
        return pickler.dumps((shown or f"<{type(value).__name__}>")[:1000])
    return bytes(data)


def _message(error: BaseException) -> str:
    message, broken = attempt(str, error)
    return f"<no message: its __str__ raised {type(broken).__name__}>" if broken else str(message)


def _name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _traceback(error: BaseException) -> str:
    text, _ = attempt(_format, error)
    return text or f"{_name(type(error))}: {_message(error)}\n"


def _format(error: BaseException) -> str:
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    _drop_our_frames(shown)
    return "".join(shown.format())


def _drop_our_frames(shown: traceback.TracebackException, seen: set[int] | None = None) -> None:
    seen = seen if seen is not None else set()
    if id(shown) in seen:
        return
    seen.add(id(shown))
    if shown.stack:
        shown.stack[:] = [frame for frame in shown.stack if not frame.filename.startswith(_HERE)]
    for other in (shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())):
        if other is not None:
            _drop_our_frames(other, seen)


def _rebuild(records: Sequence[dict[str, Any]], place: int, made: dict[int, BaseException]) -> BaseException:
    if place not in made:
        record = records[place]
        members = [_rebuild(records, member, made) for member in record["members"] if member is not None]
        made[place] = _new_group(record, members) if members else _new(record)
    return made[place]


def _new(record: dict[str, Any]) -> BaseException:
    error, _ = attempt(pickler.loads, record["pickled"])
    return error if isinstance(error, BaseException) else _without_constructor(record)


def _without_constructor(record: dict[str, Any]) -> BaseException:
    cls, arguments = _load_class(record), [_load(argument) for argument in record["args"]]
    error = _make(record, cls, *arguments)
    error.args = tuple(arguments)
    return error


def _new_group(record: dict[str, Any], members: list[BaseException]) -> BaseException:
    return _make(record, _load_class(record), _load(record["args"][0]), members)


def _make(record: dict[str, Any], cls: type[BaseException], *args: Any) -> BaseException:
    """An exception whose __init__ is not called: it may want other arguments than those in `args`."""
    error, reason = attempt(cls.__new__, cls, *args)
    if not isinstance(error, BaseException):
        raise CannotRebuild(f"{record['type']} refused to be made: {reason!r}") from reason
    error.__dict__.update({name: _load(value) for name, value in record["state"].items()})
    return error


def _load_class(record: dict[str, Any]) -> type[BaseException]:
    cls, reason = attempt(pickler.loads, record["class"])
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        raise CannotRebuild(f"{record['type']} cannot be loaded here: {reason}") from reason
    return cls


def _load(data: bytes) -> Any:
    value, reason = attempt(pickler.loads, data)
    return f"<cannot be loaded here: {reason}>" if reason else value


def _link(
    error: BaseException, record: dict[str, Any], records: Sequence[dict[str, Any]], made: dict[int, BaseException]
) -> None:
    cause, context = (_rebuild_or_stand_in(records, record[name], made) for name in ("cause", "context"))
    error.__cause__ = cause
    error.__context__ = context
    error.__suppress_context__ = record["suppress"]
    if record["notes"]:
        error.__notes__ = list(record["notes"])  # type: ignore[attr-defined]


class StandIn(Exception):
    """Takes the place, in a chain, of an exception whose type does not exist here."""


def _rebuild_or_stand_in(
    records: Sequence[dict[str, Any]], place: int | None, made: dict[int, BaseException]
) -> BaseException | None:
    if place is None or place in made:
        return None if place is None else made[place]
    try:
        error = _rebuild(records, place, made)
    except CannotRebuild:
        error = made[place] = StandIn(f"{records[place]['type']}: {records[place]['message']}")
    _link(error, records[place], records, made)
    return error
