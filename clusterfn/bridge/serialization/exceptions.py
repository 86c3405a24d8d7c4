"""Turn an exception with its whole chain into plain records, and back.

Each exception of the chain (cause, context, members of a group) is one record, so that one odd constructor does not
lose the others.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from . import crossing, pickler, unpickler
from .exception_parts import (
    CannotRebuild,
    attempt,
    built_in,
    descriptions_of,
    give_text,
    make_exception,
    name_of,
    notes_of,
    pickles_itself,
    set_attribute,
    state_of,
    text_of,
)

_HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_MAX_RECORDS = 100
_MAX_STATE = 16 << 20


_Dumps = Callable[[object], bytes]


def to_records(
    error: BaseException, target: pickler.Version = None, secrets: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Turn the chain into records for a Python of the version `target`; the first is `error` itself.

    A record refers to others by their place in the list. Past a hundred exceptions the rest is left out.

    Args:
        error: The exception.
        target: (major, minor); None for this Python's.
        secrets: Texts to mask in the message, notes, arguments and attributes. What holds one and is no plain text or
            container is kept as its repr. The class stays as it is: without it, no `except` would find the exception.
    """
    chain = _chain(error)
    places = {id(member): place for place, member in enumerate(chain)}
    dumps = functools.partial(crossing.dumps, target=target)
    return [_record(member, places, dumps, secrets) for member in chain]


def masked(value: Any, secrets: Sequence[str]) -> Any:
    """Replace each secret by `***`, in strings and bytes and in lists, tuples and dicts of them.

    Example:
        >>> masked({"message": ["no sesame-open"]}, ["sesame-open"])
        {'message': ['no ***']}
    """
    if isinstance(value, str):
        return functools.reduce(lambda text, secret: text.replace(secret, "***"), secrets, str(value))
    if type(value) is bytes:
        return functools.reduce(lambda data, secret: data.replace(_bytes_of(secret), b"***"), secrets, value)
    if type(value) is list or type(value) is tuple:
        return type(value)(masked(item, secrets) for item in value)
    if type(value) is dict:
        return {masked(key, secrets): masked(item, secrets) for key, item in value.items()}
    return value


def _bytes_of(secret: str) -> bytes:
    # Pickle encodes texts this way too, so a secret is found in its bytes.
    return secret.encode("utf-8", "surrogatepass")


def _dumps_without(secrets: Sequence[str], dumps: _Dumps, value: object) -> bytes:
    data = dumps(value)
    if _holds(data, secrets):
        data = dumps(masked(value, secrets))
    if _holds(data, secrets):
        raise ValueError("it holds a secret")
    return data


def _holds(data: bytes, secrets: Sequence[str]) -> bool:
    return any(_bytes_of(secret) in data for secret in secrets)


def summary(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of `error` as text, for people and for logs."""
    name = name_of(type(error))
    text = text_of(error)
    return {"type": name, "message": text, "traceback": attempt(_format, error)[0] or _format_bare(error, name, text)}


def bare_summary(error: BaseException, broken: BaseException) -> dict[str, str]:
    """Return what `summary` returns, for an exception whose description raised `broken`."""
    name = "%s.%s" % (type(error).__module__, type(error).__qualname__)
    message = "<no message: its __str__ raised %s>" % type(broken).__name__
    return {"type": name, "message": message, "traceback": _format_bare(error, name, message)}


def _format_bare(error: BaseException, name: str, message: str) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_HERE)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    return "%s%s: %s\n" % ("".join(lines), name, message)


def from_records(records: Sequence[dict[str, Any]]) -> BaseException:
    """Rebuild the exception that `to_records` saw, with its causes, contexts, notes and group members.

    Raises:
        CannotRebuild: The first record's exception cannot be made here; says why.
    """
    errors: dict[int, BaseException] = {}
    errors[0] = _rebuild(records, 0, errors)
    for place, record in enumerate(records):
        error = _made(records, place, errors)
        for link in ("cause", "context"):
            other = record[link]
            set_attribute(error, f"__{link}__", None if other is None else _made(records, other, errors))
        set_attribute(error, "__suppress_context__", record["suppress"])
        if record["notes"]:
            attempt(set_attribute, error, "__notes__", list(record["notes"]))
        # Prevent Python's "Did you mean": it looks among the names of the frame that catches the error, which is ours.
        # The traceback from the host has what its Python (3.12 and up) found in the right frame.
        if isinstance(error, (NameError, AttributeError)):
            attempt(set_attribute, error, "name", None)
        elif isinstance(error, ImportError):
            # From Python 3.12 on, the traceback imports the module that this names to suggest a name, and would do so
            # on this machine.
            attempt(set_attribute, error, "name_from", None)
    return errors[0]


def _chain(error: BaseException) -> list[BaseException]:
    chain: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting and len(chain) < _MAX_RECORDS:
        member = waiting.pop(0)
        if member is not None and id(member) not in chain:
            chain[id(member)] = member
            waiting += [member.__cause__, member.__context__, *_members(member)]
    return list(chain.values())


def _members(error: BaseException) -> Sequence[BaseException]:
    # `BaseExceptionGroup` exists from Python 3.11 on.
    group: Any = getattr(builtins, "BaseExceptionGroup", ())
    return error.exceptions if isinstance(error, group) else ()


def _record(error: BaseException, places: dict[int, int], dumps: _Dumps, secrets: Sequence[str]) -> dict[str, Any]:
    cls = type(error)
    members = _members(error)
    masking = functools.partial(_dumps_without, secrets, dumps)
    whole = error if pickles_itself(cls) else _ByConstructor(error)
    pickled = attempt(masking, whole)[0] if cls.__module__ != "builtins" else None
    if pickled is not None and len(pickled) > _MAX_STATE:
        pickled = None
    return {
        "python": list(sys.version_info[:2]),
        "type": name_of(cls),
        "class": attempt(dumps, cls)[0],
        "bases": [attempt(dumps, base)[0] for base in cls.__mro__[1:] if _is_specific(base)],
        "pickled": pickled if pickles_itself(cls) else None,
        "pickled_plainly": None if pickles_itself(cls) else pickled,
        "args": [_dumps_or_repr(arg, masking, secrets) for arg in (error.args[:1] if members else error.args)],
        "args_of_group": [_dumps_or_repr(arg, masking, secrets) for arg in (error.args[2:] if members else ())],
        "state": {name: _dumps_or_repr(value, masking, secrets) for name, value in state_of(error).items()},
        "message": masked(text_of(error), secrets),
        "notes": masked(notes_of(error), secrets),
        "cause": places.get(id(error.__cause__)),
        "context": places.get(id(error.__context__)),
        "suppress": error.__suppress_context__,
        "members": [places.get(id(member)) for member in members],
    }


class _ByConstructor:
    """An exception that a pickle makes by a call of its class, as Python's own way is."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return self.error.__reduce__()


def _is_specific(cls: type) -> bool:
    """Return whether it is a class of exceptions that programs catch for what it says."""
    return issubclass(cls, BaseException) and cls is not BaseException and cls is not Exception


def _dumps_or_repr(value: object, dumps: _Dumps, secrets: Sequence[str]) -> bytes:
    """Pickle the value, or its repr if it cannot be pickled or is very large.

    Plain bytes always travel: a UnicodeDecodeError holds all that it should decode, and is nothing without it.
    """
    data, _ = attempt(dumps, value)
    if data is None or (len(data) > _MAX_STATE and type(value) is not bytes):
        shown, _ = attempt(repr, value)
        return pickler.dumps(masked(shown or f"<{type(value).__name__}>", secrets)[:1000])
    return bytes(data)


def _format(error: BaseException) -> str:
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    seen: set[int] = set()
    waiting: list[Any] = [shown]
    while waiting:
        current = waiting.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            if current.stack:
                current.stack[:] = [frame for frame in current.stack if not frame.filename.startswith(_HERE)]
            waiting += [current.__cause__, current.__context__, *(getattr(current, "exceptions", None) or ())]
    return "".join(shown.format())


def _made(records: Sequence[dict[str, Any]], place: int, errors: dict[int, BaseException]) -> BaseException:
    if place not in errors:
        try:
            errors[place] = _rebuild(records, place, errors)
        except CannotRebuild:
            errors[place] = StandIn(f"{records[place]['type']}: {records[place]['message']}")
    return errors[place]


def _rebuild(records: Sequence[dict[str, Any]], place: int, errors: dict[int, BaseException]) -> BaseException:
    record = records[place]
    args = [_load(record, argument) for argument in record["args"][: 1 if record["members"] else None]]
    if record["members"]:
        members = [_made(records, member, errors) for member in record["members"] if member is not None]
        left_out = len(record["members"]) - len(members)
        args.append([*members, StandIn(f"and {left_out} more")] if left_out else members)
    error = _best(record, args)
    if record.get("args_of_group"):
        more = [_load(record, argument) for argument in record["args_of_group"]]
        attempt(set_attribute, error, "args", (*error.args, *more))
    return error


def _best(record: dict[str, Any], args: list[Any]) -> BaseException:
    """Rebuild an exception in the first way that gives its type and text; else in the first that gives one of them.

    Where its class cannot be rebuilt, its nearest base takes its place: `except TypeError` catches it all the same.

    Raises:
        CannotRebuild: Neither can.
    """
    by_parts = functools.partial(_without_constructor, record, args)
    ways = [(functools.partial(_unpickled, record, name), name) for name in ("pickled", "pickled_plainly")]
    ways.insert(1, (functools.partial(by_parts, record["class"]), "class"))
    errors: list[BaseException] = []
    reasons: list[BaseException] = []
    for way, needs in ways:
        if record.get(needs) is None and needs != "class":
            continue
        error, reason = attempt(way)
        if error is not None and text_of(error) == record["message"] and name_of(type(error)) == record["type"]:
            return error  # type: ignore[no-any-return]
        errors += [error] if error is not None else []
        reasons += [reason] if reason is not None else []
    if errors:
        best = next((candidate for candidate in errors if text_of(candidate) == record["message"]), errors[0])
        # An object among the arguments may show its address in the text, which differs here in any case. Only lost
        # arguments need the text.
        if descriptions_of(best.args) != descriptions_of(args):
            give_text(best, record["message"])
        return best
    for base in record.get("bases") or ():
        error, _ = attempt(by_parts, base)
        if error is not None:
            return _with_text(error, record)
    raise reasons[0] if isinstance(reasons[0], CannotRebuild) else CannotRebuild(f"{record['type']}: {reasons[0]!r}")


def _unpickled(record: dict[str, Any], name: str) -> BaseException:
    error = _loads(record, record[name])
    if not isinstance(error, BaseException):
        raise CannotRebuild(f"{record['type']} is pickled as something else")
    return error


def _with_text(error: BaseException, record: dict[str, Any]) -> BaseException:
    """Give an exception that takes another's place the text of that one, and its type as a note."""
    if text_of(error) != record["message"]:
        copy, _ = attempt(built_in(type(error), "__new__"), type(error), record["message"])
        attempt(built_in(type(error), "__init__"), copy, record["message"])
        error = copy if isinstance(copy, BaseException) else error
    record["notes"] = [*record["notes"], f"it was raised as {record['type']}, which cannot be rebuilt here"]
    return error


def _without_constructor(record: dict[str, Any], args: list[Any], pickled_class: bytes) -> BaseException:
    """Rebuild an exception without calling a constructor written in Python: it may want other arguments, or print."""
    cls, reason = attempt(_loads, record, pickled_class)
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        raise CannotRebuild(f"{record['type']} cannot be loaded here: {reason}") from reason
    error = make_exception(cls, args)
    for name, value in record["state"].items():
        attempt(set_attribute, error, name, _load(record, value))
    return error


def _load(record: dict[str, Any], data: bytes) -> Any:
    value, reason = attempt(_loads, record, data)
    return f"<cannot be loaded here: {reason}>" if reason else value


def _loads(record: dict[str, Any], data: bytes) -> Any:
    same = tuple(record["python"]) == sys.version_info[:2]
    return unpickler.loads(data) if same else unpickler.loads_without_code(data)


class StandIn(Exception):
    """Takes the place, in a chain, of an exception whose type does not exist in this environment."""
