"""The line of `%%cluster`: options of a call as flags, and the variables that go in and out."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterfn.config.option_checks import read_requeue
from clusterfn.config.options import ALIASES, OF_SLURM, CallOptions, Options, parse_options
from clusterfn.errors import ConfigError, did_you_mean

# The annotations decide how each option is read, so that a new one needs no line here.
_KINDS = {name: getattr(kind, "__forward_arg__", str(kind)) for name, kind in CallOptions.__annotations__.items()}
_PAIRS = frozenset(name for name, kind in _KINDS.items() if "Mapping[" in kind)
_LISTS = frozenset(name for name, kind in _KINDS.items() if "Sequence[" in kind)
_NUMBERS = frozenset(name for name, kind in _KINDS.items() if re.search(r"\bint\b", kind))
_FLAGS = frozenset(name for name, kind in _KINDS.items() if re.search(r"\bbool\b", kind)) - _PAIRS
_VARIABLES = {"-i": "inputs", "--input": "inputs", "-o": "outputs", "--output": "outputs"}
_KNOWN = {f"--{keyword.replace('_', '-')}": keyword for keyword in _KINDS}
_EXAMPLE = "%%cluster --host tensor01 --gpus 1 -i data -o result"
# Between two values of a list; not inside `torch>=2.4,<2.8` or `foo[a,b]`.
_COMMA = re.compile(r",(?!\s*[<>=!~])(?![^\[]*\])")
# A keyword of `@cluster` in a hint, and its value: a text, a list, a dict or a word.
_AS_KEYWORD = re.compile(rf"\b({'|'.join(_KINDS)})=(\"[^\"]*\"|\[[^\]]*\]|\{{[^}}]*\}}|\w[\w.]*)")


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
    except ValueError as unclosed:
        # A quotation mark is not closed.
        raise ConfigError(f"%%cluster {line}: {unclosed}", hint=f"write it like {_EXAMPLE}") from None
    keywords: dict[str, Any] = {}
    names: dict[str, list[str]] = {"inputs": [], "outputs": []}
    while words:
        word, equals, value = words.pop(0).partition("=")
        if word in _VARIABLES:
            names[_VARIABLES[word]] += _names(word, value or _next(word, words))
            continue
        keyword = _keyword(word)
        if keyword in _FLAGS:
            # What follows a flag must be the next option.
            if not (equals + value or next(iter(words), "-")).startswith("-"):
                raise ConfigError(f"%%cluster: {word} takes no value", hint=f"write {word} alone, or leave it out")
            keywords[keyword] = True
        else:
            _add(keywords, keyword, value or _next(word, words))
    try:
        options = parse_options(keywords)
    except ConfigError as error:
        error.hint = _with_flags(error.hint) if error.hint else None
        raise
    return CellOptions(options, *(tuple(dict.fromkeys(each)) for each in names.values()))


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
    name = word.lstrip("-").replace("-", "_")
    if name in OF_SLURM:
        raise ConfigError(f"%%cluster has no option {word}", hint=f"write --slurm {name}=VALUE")
    meant = ALIASES.get(name)
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


def _add(keywords: dict[str, Any], keyword: str, value: str) -> None:
    """Record the value of an option, as a keyword of `@cluster` takes it."""
    if keyword == "requeue":
        keywords.setdefault(keyword, {}).update(read_requeue([value]))
    elif keyword in _PAIRS:
        keywords.setdefault(keyword, {}).update([_pair(keyword, value)])
    elif keyword in _LISTS:
        keywords.setdefault(keyword, []).extend(_COMMA.split(value))
    elif keyword in keywords:
        problem = f"%%cluster: {_flag_of(keyword)} is given twice: {keywords[keyword]} and {value}"
        raise ConfigError(problem, hint="remove one of them")
    else:
        is_number = keyword in _NUMBERS and value.removeprefix("-").isdecimal()
        keywords[keyword] = int(value) if is_number else value


def _pair(keyword: str, pair: str) -> tuple[str, Any]:
    """Read NAME=VALUE, or what a name alone means."""
    name, equals, text = pair.partition("=")
    if keyword == "env" and not equals:
        raise ConfigError(f"%%cluster: --env {pair} has no value", hint="write --env NAME=VALUE")
    if keyword == "slurm":
        # Some options of sbatch have no value, so a name alone means True.
        return name, None if text == "None" else text if equals else True
    return name, text


def _flag_of(keyword: str) -> str:
    return f"--{keyword.replace('_', '-')}"


def _with_flags(hint: str) -> str:
    """Write the keywords in a hint as flags.

    `write gpus=2, gpu_type="a6000"` becomes `write --gpus 2 --gpu-type a6000`.
    """
    flags = _AS_KEYWORD.sub(lambda match: _as_flag(match[1], match[2]), hint).replace(", without quotes", "")
    return flags.replace(", --", " --")


def _as_flag(keyword: str, text: str) -> str:
    """Write the keyword and its value, which is Python's, as words of the line."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        # The match is a word of the sentence and not a value of Python.
        value = text
    if value is True:
        return _flag_of(keyword)
    several = [f"{name}={each}" for name, each in value.items()] if isinstance(value, dict) else value
    words = several if isinstance(several, list) else [value]
    return " ".join(f"{_flag_of(keyword)} {shlex.quote(str(word))}" for word in words)


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
