"""Short texts of values, for lines, tables and errors: they say which of many calls is meant.

`shown` is the text of one value, and `labels` are those of many calls, whose arguments `rows_to_show` names.
`argument_table` has a column for each parameter, and for each named field of its value.
Values come from users, so nothing here may fail, and nothing may take long: large values show their kind and size.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import numbers
import os.path
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any

from clusterfn.bridge.attributes import attribute, is_a, signature_of
from clusterfn.bridge.supervisor.text import in_one_line, shortened, width
from clusterfn.packing.dependencies import JobArgument, reference_of

_LONGEST_IN_TABLE = 1000  # characters of a string
ROOM = 40  # columns of a terminal for a label
_DEPTH = 4  # values inside values that are shown
_MEMBERS = 6  # of a list or an array
_FIELDS = 24  # of a configuration
_LONG = 200  # characters of a string
_ALIKE = 8  # characters with which all texts begin, and which say nothing
_SECRETS = "token|secret|password|passwd|passphrase|credentials?|(?:api|access|private|secret)[_-]?key"
_SECRET = re.compile(f"(?:^|[_-])(?:{_SECRETS})$", re.IGNORECASE)
_NAMED = rf"[\w.+-]*(?<![^\W_])(?:{_SECRETS}|key|pwd|authorization)"
_IN_COMMAND = re.compile(
    rf"""
      ((?<=['"]){_NAMED}=) [^'"$]+                                       # 'API_KEY=a b'
    | ((?<![\w.+-])(?:{_NAMED}=|-{_NAMED}\s+(?!-)))(?!"?\$)              # --token=VALUE, KEY=VALUE, --token VALUE
      (?:'[^']*'|"[^"]*"|[^\s'"|&;<>()])+
    | ((?<![\w.+-]){_NAMED}['"]?:\s*['"]?) [^'",}}$]+                     # a header; JSON
    | (://[^/\s:@]*:) [^/\s@$]+ (?=@)                                    # an address
    | \{{{_NAMED}\}}                                                     # a place
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The keys are ids: a metaclass may define no hash.
_PLAIN = {id(kind) for kind in (bool, int, float, complex, range, slice)}
# The `repr` of these types is longer than their text, and has no more to say.
_BY_STR = ("datetime", "uuid", "ipaddress", "pandas._libs.tslibs.timestamps")
Row = Sequence[tuple[str, Any]]


class CommandWord(str):
    """A value that a command gets as a word: it is shown without quotes."""


def shown(value: object, most: int = ROOM) -> str:
    """Return a value in one short line.

    Example:
        >>> shown({"lr": 0.1, "layers": [64, 64]}), shown(PurePath("data/a.csv"))
        ("{'lr': 0.1, 'layers': [64, 64]}", 'data/a.csv')
    """
    return shortened(_text(value), most)


def labels(rows: Sequence[Row], most: int = ROOM) -> list[str]:
    """Name many calls, each by its arguments: by all of them if they are short, else by what differs.

    Args:
        rows: The arguments of each call, each with the word that goes before it; "" for none.
        most: Columns of a terminal for each.

    Example:
        >>> labels([[("", 0.1), ("", "adam")], [("", 0.2), ("", "adam")]])
        ["0.1, 'adam'", "0.2, 'adam'"]
    """
    whole = [", ".join(_with_word(word, _text(open_value(word, value))) for word, value in row) for row in rows]
    if all(width(text) <= most for text in whole):
        return whole
    parts = [{(at, *part): text for at, argument in enumerate(row) for part, text in _parts(*argument)} for row in rows]
    keys = dict.fromkeys(itertools.chain.from_iterable(parts))
    differing = [key for key in keys if len({row.get(key) for row in parts}) > 1]
    if not differing:
        return [shortened(text, most) for text in whole]
    for key in differing:
        _leave_out_beginning(key, parts, most // len(differing))
    words = [[_with_word(key[1], row[key]) for key in differing if key in row] for row in parts]
    return [shortened(", ".join(texts), most) for texts in words]


def rows_to_show(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], kwargs: Mapping[str, Any] | None = None
) -> list[Row]:
    """Return the arguments of each call as `labels` takes them, with *** in place of secrets."""
    return [row_of(function, opened(row), kwargs) for row in named_arguments(function, calls)]


def named_arguments(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[list[tuple[str, Any]]]:
    """Return the positional arguments of each call with the names of their parameters."""
    names = _parameter_names(function, max(map(len, calls), default=0))
    return [list(zip(names, args)) for args in calls]


def _parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """Name the first positional arguments: those of `*xs` are xs_0, xs_1 and so on."""
    signature = signature_of(function)
    parameters = list(signature.parameters.values()) if signature else []
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    more = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), "argument")
    return [*names, *(f"{more}_{number}" for number in range(count - len(names)))][:count]


def row_of(function: object, args: Iterable[Any], kwargs: Mapping[str, Any] | None = None) -> Row:
    """Return the arguments of a call as `labels` takes them; those of a command with the names of its places."""
    row = [*(("", value) for value in args), *(kwargs or {}).items()]
    if attribute(function, "command_line") is None:
        return row
    places = itertools.chain(attribute(function, "__signature__").parameters, itertools.repeat(""))
    words = (CommandWord(value) if isinstance(value, str) else value for _, value in row)
    return [(name or place, word) for (name, _), place, word in zip(row, places, words)]


def of_all(names: Sequence[str]) -> str:
    """Name many calls by the first and the last of them.

    Example:
        >>> of_all(["0.1", "0.2", "0.3"])
        '0.1 … 0.3'
    """
    if len(names) == 1:
        return shortened(names[0], ROOM)
    half = (ROOM - 3) // 2
    return f"{shortened(names[0], half)} … {shortened(names[-1], half)}" if names else ""


def without_secrets(command: str) -> str:
    """Return a command as it may be shown, with *** for the values of what is called token, password, key or the like.

    What a shell of the host will put in, such as $TOKEN, stays.

    Example:
        >>> without_secrets("train.py --lr 0.1 --token abc logger.api_key=abc")
        'train.py --lr 0.1 --token *** logger.api_key=***'
    """
    return _IN_COMMAND.sub(lambda match: f"{next(filter(None, match.groups()), '')}***", command)


def cut(text: str, most: int = ROOM) -> str:
    """Return a text in one line of so many columns at most."""
    return shortened(" ".join(text.split()), most)


def argument_table(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], constants: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the arguments of each call by the names of the function's parameters, as JSON can hold them.

    Example:
        >>> argument_table(lambda lr, model: 0, [(0.1, "mlp"), (1, [2])], {"epochs": 3})[1]
        {'lr': 1, 'model': '[2]', 'epochs': 3}
    """
    same = _all_columns(constants.items())
    return [{**_all_columns(row), **same} for row in named_arguments(function, calls)]


def _all_columns(row: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {key: part for name, value in row for key, part in columns(name, value).items()}


def columns(name: str, value: object) -> dict[str, Any]:
    """Return what a table has of an argument: a number, string, bool or None as it is, of others a text.

    What has named fields, such as a dict or a dataclass, has a column for each of them, too.

    Example:
        >>> columns("cfg", {"lr": 0.1, "data": PurePath("a/b")})
        {'cfg': "{'lr': 0.1, 'data': a/b}", 'cfg.lr': 0.1, 'cfg.data': 'a/b'}
    """
    parts = {key: plain(open_value(key, part)) for key, part in leaves(name, value).items() if key != name}
    return {name: plain(open_value(name, value)), **parts}


def plain(value: Any) -> Any:
    """Return a number, string, bool or None as JSON has it; of others, a short text."""
    if value is None or issubclass(type(value), bool):
        return value
    if issubclass(type(value), str) and not issubclass(type(value), Enum) and len(value) < _LONGEST_IN_TABLE:
        return str(value)
    if issubclass(type(value), Enum) or not is_a(value, numbers.Number):
        return shown(value, _LONG)
    # This includes integers of numpy.
    if is_a(value, numbers.Integral):
        return int(value)
    if is_a(value, numbers.Real) and not is_a(value, numbers.Rational):
        return float(value)
    return shown(value, _LONG)


def leaves(name: str, value: object) -> dict[str, Any]:
    """Return the named fields of a value, and of those in it; a value without any is its own."""
    return dict(_leaves(name, value))


def opened(row: Row) -> list[Any]:
    """Return the values of named arguments, with *** in place of those whose names say that they are secrets."""
    return [open_value(name, value) for name, value in row]


def open_value(name: str, value: Any) -> Any:
    """Return a value that may be shown: labels are written into files, lists and messages, and a secret is not."""
    is_secret = issubclass(type(value), (str, bytes)) and _SECRET.search(name.rpartition(".")[2])
    return "***" if is_secret else value


def _with_word(word: str, text: str) -> str:
    return f"{word}={text}" if word else text


def _parts(word: str, value: object) -> Iterable[tuple[tuple[str], str]]:
    """Yield the words and texts of an argument's fields; without a word of its own, theirs say enough."""
    for key, part in _leaves(word, value):
        yield (key.lstrip("."),), _text(open_value(key, part))


def _leaves(name: str, value: object, depth: int = _DEPTH) -> Iterable[tuple[str, Any]]:
    fields = fields_of(value) if depth else None
    if not fields:
        yield name, value
        return
    for key, part in fields.items():
        yield from _leaves(f"{name}.{key}", part, depth - 1)


def _leave_out_beginning(key: tuple[int, str], parts: Sequence[dict[Any, str]], room: int) -> None:
    """Shorten the texts of one key, if they are too long, by what all of them begin with."""
    texts = [row[key] for row in parts if key in row]
    common = len(os.path.commonprefix(texts))
    if common > _ALIKE and max(map(width, texts)) > room:
        for row in parts:
            if key in row:
                row[key] = f"…{row[key][common - 1 :]}"


def _text(value: object) -> str:
    try:
        return in_one_line(_described(value, _DEPTH))
    except Exception:  # noqa: BLE001 - the user's `__repr__` or property may raise anything
        return type(value).__name__


def _described(value: Any, depth: int) -> str:
    kind = type(value)
    if value is None or id(kind) in _PLAIN:
        return repr(value)
    if issubclass(type(value), JobArgument):
        return reference_of(value).label
    if issubclass(type(value), Enum):
        return f"{kind.__name__}.{value.name}"
    if issubclass(type(value), CommandWord):
        return str(value[: _LONG + 1])
    if issubclass(type(value), (str, bytes, bytearray)):
        cut = value[: _LONG + 1]
        return repr(str(cut) if issubclass(type(value), str) else cut)
    if issubclass(type(value), PurePath) or is_a(value, numbers.Number) or kind.__module__ in _BY_STR:
        return str(value)
    if callable(value) and isinstance(getattr(value, "__name__", None), str):
        return str(value.__name__)
    if hasattr(kind, "shape"):
        return _array(value, depth)
    if depth <= 0:
        return kind.__name__
    fields = fields_of(value)
    if fields is not None:
        texts = {key: _described(open_value(key, content), depth - 1) for key, content in fields.items()}
        if is_a(value, Mapping):
            return f"{{{', '.join(f'{key!r}: {text}' for key, text in texts.items())}}}"
        return f"{kind.__name__}({', '.join(f'{key}={text}' for key, text in texts.items())})"
    if issubclass(type(value), (list, tuple, set, frozenset)) or is_a(value, Mapping):
        return _members(value, depth)
    shown_text = repr(value)[: 4 * _LONG] if _has_repr(kind) else kind.__name__
    return kind.__name__ if " at 0x" in shown_text else " ".join(shown_text.split())


def _array(value: Any, depth: int) -> str:
    """Describe an array, a tensor or a table: its values if they are few and here, else its kind and shape."""
    shape = tuple(value.shape)
    is_here = hasattr(value, "tolist") and str(getattr(value, "device", "cpu")).startswith("cpu")
    if is_here and all(type(length) is int for length in shape) and math.prod(shape) <= _MEMBERS:
        return _described(value.tolist(), depth)
    return f"{type(value).__name__}({', '.join(map(str, shape))})"


def _members(value: Any, depth: int) -> str:
    left = f", … {len(value) - _MEMBERS} more" if len(value) > _MEMBERS else ""
    first = list(itertools.islice(value.items() if is_a(value, Mapping) else value, _MEMBERS))
    if is_a(value, Mapping):
        pairs = [f"{_described(key, depth - 1)}: {_described(member, depth - 1)}" for key, member in first]
        return f"{{{', '.join(pairs)}{left}}}"
    texts = [_described(member, depth - 1) for member in first]
    if issubclass(type(value), (set, frozenset)):
        return f"{{{', '.join(sorted(texts))}{left}}}" if texts else "set()"
    if issubclass(type(value), tuple):
        return f"({', '.join(texts)}{left}{',' if len(value) == 1 else ''})"
    return f"[{', '.join(texts)}{left}]"


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the named fields of a configuration; None for what has none, or more than a person reads."""
    kind = type(value)
    names: Iterable[Any] | None = None
    if issubclass(type(value), (JobArgument, Enum, PurePath, type, types.ModuleType)) or hasattr(kind, "shape"):
        return None
    if is_a(value, Mapping):
        if len(value) > _FIELDS or not all(isinstance(key, str) for key in value):
            return None
        return dict(value)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(value) if field.repr]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [field.name for field in kind.__attrs_attrs__ if field.repr is not False]
    elif issubclass(type(value), tuple):
        names = getattr(kind, "_fields", None)
    elif isinstance(getattr(kind, "model_fields", None), dict):
        # Models of pydantic have this attribute.
        names = kind.model_fields
    elif not _has_repr(kind) or issubclass(type(value), (types.SimpleNamespace, argparse.Namespace)):
        names = [name for name in attribute(value, "__dict__", {}) if not name.startswith("_")] or None
    if names is None or callable(value):
        return None
    fields = {name: attribute(value, name) for name in itertools.islice(names, _FIELDS + 1)}
    return fields if len(fields) <= _FIELDS else None


def _has_repr(kind: type[Any]) -> bool:
    """Whether a class says more of its objects than where they are in memory."""
    return any("__repr__" in vars(base) for base in kind.__mro__ if base is not object)
