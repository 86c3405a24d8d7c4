"""The line of `%%cluster`: options of a call as flags, and the variables that go in and out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterfn.config.options import ALIASES, CallOptions, Options, parse_options
from clusterfn.errors import ConfigError, did_you_mean

_NUMBERS = frozenset(["cores", "gpus", "nodes", "retries"])
_LISTS = frozenset(["packages", "modules", "secrets", "outputs"])
_PAIRS = frozenset(name for name, kind in CallOptions.__annotations__.items() if "Mapping" in str(kind))
_VARIABLES = {"-i": "inputs", "--input": "inputs", "-o": "outputs", "--output": "outputs"}
_KNOWN = {f"--{keyword.replace('_', '-')}": keyword for keyword in CallOptions.__annotations__}
_EXAMPLE = "%%cluster --host tensor01 --gpus 1 -i data -o result"


@dataclass(frozen=True)
class CellOptions:
    """What the line of a cell says.

    Attributes:
        options: Of the call.
        inputs: Variables of the notebook that the cell gets.
        outputs: Variables of the cell that the notebook gets.
    """

    options: Options
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def parse_line(line: str) -> CellOptions:
    """Read the words after `%%cluster`.

    Raises:
        ConfigError: An unknown option, a missing or wrong value, something that is no name of a variable.

    Example:
        >>> parse_line("--gpus 1 -i x,y -o z").inputs
        ('x', 'y')
    """
    try:
        words = shlex.split(line)
    except ValueError as unclosed:  # a quotation mark
        raise ConfigError(f"%%cluster {line}: {unclosed}", hint=f"write it like {_EXAMPLE}") from None
    given: dict[str, Any] = {}
    names: dict[str, list[str]] = {"inputs": [], "outputs": []}
    while words:
        word, _, value = words.pop(0).partition("=")
        if word in _VARIABLES:
            names[_VARIABLES[word]] += _names(word, value or _next(word, words))
            continue
        keyword = _keyword(word)
        if keyword == "allow_cpu":
            given[keyword] = True
        else:
            _add(given, keyword, value or _next(word, words))
    return CellOptions(parse_options(given), *(tuple(dict.fromkeys(each)) for each in names.values()))


def _keyword(word: str) -> str:
    """Return the keyword of an option.

    Raises:
        ConfigError: There is no such option.
    """
    if word in _KNOWN:
        return _KNOWN[word]
    if not word.startswith("-"):
        hint = f"options begin with --: {_EXAMPLE}"
        raise ConfigError(f"%%cluster does not know what {word!r} is for", hint=hint)
    meant = ALIASES.get(word.lstrip("-").replace("-", "_"))
    near = f"; did you mean --{meant.replace('_', '-')}?" if meant else did_you_mean(word, [*_VARIABLES, *_KNOWN])
    raise ConfigError(f"%%cluster has no option {word}{near}", hint=f"the options are -i, -o, {', '.join(_KNOWN)}")


def _next(word: str, words: list[str]) -> str:
    if not words or words[0].startswith("-"):
        raise ConfigError(f"%%cluster: {word} needs a value", hint=f"write it like {_EXAMPLE}")
    return words.pop(0)


def _names(word: str, value: str) -> list[str]:
    names = value.split(",")
    for name in names:
        if not name.isidentifier():
            hint = f"give the name alone, several as {word} a -i b or {word} a,b".replace("-i b", f"{word} b")
            raise ConfigError(f"%%cluster: {word} {value}: {name!r} is not the name of a variable", hint=hint)
    return names


def _add(given: dict[str, Any], keyword: str, value: str) -> None:
    """Record the value of an option, as a keyword of `@cluster` takes it."""
    if keyword in _LISTS:
        given.setdefault(keyword, []).extend(value.split(","))
    elif keyword in _PAIRS:
        name, equals, text = value.partition("=")
        if not equals and keyword == "env":
            raise ConfigError(f"%%cluster: --env {value} has no value", hint="write --env NAME=VALUE")
        given.setdefault(keyword, {})[name] = text if equals else True  # some options of schedulers have no value
    elif keyword in given:
        flag = f"--{keyword.replace('_', '-')}"
        raise ConfigError(f"%%cluster: {flag} is given twice: {given[keyword]} and {value}", hint="remove one of them")
    else:
        given[keyword] = int(value) if keyword in _NUMBERS and value.isdecimal() else value


def values_of(names: tuple[str, ...], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of these names.

    Raises:
        ConfigError: One of them does not exist.
    """
    for name in names:
        if name not in variables:
            near = did_you_mean(name, [each for each in variables if not each.startswith("_")])
            message = f"%%cluster -i {name}: the notebook has no variable {name!r}{near}"
            raise ConfigError(message, hint="run the cell that sets it, or leave it out")
    return {name: variables[name] for name in names}
