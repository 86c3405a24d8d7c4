"""A YAML file as a tree in which every piece knows its place, so that every complaint names file, line and column.

It builds no objects from the file and guesses no types: a scalar keeps the text that was written. What YAML 1.1 would
quietly change (`no`, `1:30`, `010`) is rejected where it would matter.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clusterfn.config.units import parse_memory, parse_time
from clusterfn.errors import ConfigError, did_you_mean

# In the worst case, reading a file of this size takes seconds.
LIMIT_BYTES = 2**17
# No configuration needs more levels, and reading very many of them would exhaust Python's stack.
_DEPTH = 12
# The most characters of a line that an error shows.
_SHOWN = 120
# The most characters of a problem's description.
_LONGEST = 1000
_TAG = "tag:yaml.org,2002:"
# Finds the password in user:password@host. The pattern reads each word only once, so no line takes long.
_PASSWORD = r"(?:(?<=[\s@\"'])|^)([^\s@\"':]*):[^\s@\"']+@"
# Errors do not show a line that matches this, because it may contain a secret.
_HIDDEN = r"(?i)pass\w*\W*[:=]|" + _PASSWORD
_COUNT = re.compile(r"0|[1-9][0-9]*")
# The slash excludes web addresses.
_WITHOUT_SPACE = r"\s*([A-Za-z_]\w*):[^\s:/]"
_GIVE_VALUE = "give it a value, or remove the key"
_NOT_TEXT = {
    "bool": "means true or false in YAML",
    "null": "means nothing in YAML",
    "int": "is a number in YAML",
    "float": "is a number in YAML",
    "timestamp": "is a date in YAML",
    "merge": "merges mappings in YAML, which is not supported here",
}


class Source(NamedTuple):
    """The file that is read, for messages."""

    path: str
    lines: tuple[str, ...] = ()

    def error(self, problem: str, line: int, column: int, hint: str | None, *, show: bool = True) -> ConfigError:
        """Return a ConfigError that begins with file:line:column and shows that line; count from 0."""
        text = self.lines[line].strip() if show and line < len(self.lines) else ""
        evidence = [text[:_SHOWN]] if text and not re.search(_HIDDEN, text) else []
        # The problem may quote a value with a password in it, which must not reach a log.
        shown_problem = re.sub(_PASSWORD, r"\1:…@", problem[:_LONGEST])
        return ConfigError(f"{self.path}:{line + 1}:{column + 1}: {shown_problem}", evidence=evidence, hint=hint)


@dataclass(frozen=True)
class Value:
    """One piece of the file.

    Attributes:
        name: The keys that lead to it, "hosts.tensor01.root".
        kind: "map", "list", or what YAML takes the scalar for: "str", "int", "float", "bool", "null", "timestamp".
        text: A scalar as it was written, without its quotes.
        plain: Whether it has no quotes.
        literal: Whether it is in single quotes, in which a shell expands nothing either.
    """

    source: Source
    line: int
    column: int
    name: str
    kind: str
    text: str = ""
    plain: bool = True
    literal: bool = False
    values: tuple[Value, ...] = ()
    pairs: tuple[tuple[Value, Value], ...] = field(default=(), repr=False)

    def error(self, problem: str, hint: str | None = None, *, show: bool = True) -> ConfigError:
        """Return a ConfigError about this piece, to be raised by the caller."""
        message = f"{self.name}: {problem}" if self.name else problem
        return self.source.error(message, self.line, self.column, hint, show=show)

    @property
    def place(self) -> str:
        """file:line, for messages about what was configured here."""
        return f"{self.source.path}:{self.line + 1}"

    @property
    def written(self) -> str:
        """The scalar for a message, or what it is if it is none."""
        return {"map": "a mapping", "list": "a list"}.get(self.kind, f'"{self.text}"')

    def mapping(
        self, allowed: Collection[str] | None = None, advice: Mapping[str, str] | None = None
    ) -> dict[str, Value]:
        """Return its keys and values, each key once and, where `allowed` is given, one of those.

        Args:
            allowed: The keys that it may have; None for any.
            advice: What to do about some others, instead of a list of the allowed ones.
        """
        if self.kind != "map":
            where = _space_after_colon([self.text]) or 'write "key: value" lines below it, indented further'
            raise self.error(f"expected keys, found {self.written}", where)
        entries: dict[str, Value] = {}
        for key, value in self.pairs:
            name = key.as_text()
            if allowed is not None and name not in allowed:
                # The keys of ssh_config, for example, may be in capitals.
                hint = (advice or {}).get(name.lower())
                near = "" if hint else did_you_mean(name, allowed)
                hint = hint or f"the keys allowed here are {', '.join(sorted(allowed))}"
                raise key.error(f'unknown key "{name}"{near}', hint)
            if name in entries:
                first = entries[name].line + 1
                raise key.error(f'duplicate key "{name}", first used in line {first}', "keep one of them")
            entries[name] = value
        return entries

    def as_text(self) -> str:
        """Return a text that is not empty and has no control characters; a plain `no` or `1:30` is rejected."""
        if self.kind in ("map", "list"):
            hint = 'write one value; put a text with ": ", brackets or braces in quotes'
            raise self.error(f"expected a string, found {self.written}", hint)
        if self.kind != "str":
            problem = f"{self.written} {_NOT_TEXT.get(self.kind, 'is not a string')}"
            raise self.error(problem, _GIVE_VALUE if self.kind == "null" else f'write "{self.text}" in quotes')
        return self._visible()

    def as_written(self) -> str:
        """Return the scalar as it was written, numbers included: for values with units, and for variables."""
        return self._visible() if self.kind in ("int", "float") and self.plain else self.as_text()

    def as_lines(self) -> tuple[str, ...]:
        """Return a list of texts, or the lines of one text."""
        if self.kind == "list":
            return tuple(value.as_text() for value in self.values)
        if self.kind != "str":
            self.as_text()
        lines = [Value(self.source, self.line, self.column, self.name, "str", line) for line in self.text.splitlines()]
        return tuple(line.as_text() for line in lines if line.text.strip())

    def as_count(self, least: int) -> int:
        """Return a whole number in decimal digits of at least `least`."""
        # Limit the digits, because Python takes long to convert a number with very many of them.
        counts = self.kind == "int" and self.plain and len(self.text) < 16 and _COUNT.fullmatch(self.text)
        number = int(self.text) if counts else -1
        if number < least:
            hint = "write it in digits, without quotes, a unit or a leading zero"
            raise self.error(f"{self.written} is not a whole number of at least {least}", hint)
        return number

    def as_path(self) -> str:
        """Return a text that no command takes for an option."""
        text = self.as_text()
        if text.startswith("-"):
            raise self.error(f'"{text}" is not a path', "write the full path")
        return text

    def as_memory(self) -> int:
        """Bytes, from an amount with a unit."""
        try:
            return parse_memory(self.text)
        except ConfigError as error:
            hint = 'write it with a unit and in quotes: "16GB" or "512MB"'
            raise self.error(f"{self.written} is not an amount of memory", hint) from error

    def as_time(self) -> float:
        """Seconds, from a duration with a unit."""
        try:
            return parse_time(self.text)
        except ConfigError as error:
            hint = 'write it with a unit and in quotes: "14d", "2h", "90min" or "02:00:00"'
            raise self.error(f"{self.written} is not a duration", hint) from error

    def as_choice(self, choices: Collection[str]) -> str:
        """One of a few words, in capitals or not."""
        word = self.text.lower()
        if word not in choices:
            hint = f"choose one of {', '.join(choices)}"
            raise self.error(f"{self.written} is not allowed{did_you_mean(word, choices)}", hint)
        return word

    def _visible(self) -> str:
        if not self.text.strip():
            raise self.error("the value is empty", _GIVE_VALUE)
        if any(ord(char) < 32 and char != "\t" or ord(char) == 127 for char in self.text):
            raise self.error("a line break or another control character", "write it on one line")
        return self.text


_EXAMPLE = "begin with a line `hosts:`; docs/reference/configuration.md shows a complete file"


def parse(data: bytes, path: str) -> Value:
    """Return the tree; raise ConfigError if it is not one YAML document of 128 KB at most, without aliases and tags."""
    if len(data) > LIMIT_BYTES:
        raise ConfigError(f"{path}: {len(data)} bytes are too large for a configuration", hint="keep it below 128 KB")
    text = decode(data, path)
    source = Source(path, tuple(text.splitlines()))
    node = _composed(text, source)
    if node is None:
        raise source.error("the file is empty", 0, 0, _EXAMPLE)
    return _value(node, source, "")


def read_text(path: Path) -> str:
    """Read a text file that a user has written; raise ConfigError if it cannot be read, or is not text."""
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="correct its name or its mode") from error


def decode(data: bytes, path: str) -> str:
    """Decode UTF-8, with a byte order mark or without; raise ConfigError with the first line that is none."""
    wrong = data.find(b"\0")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = ""
        wrong = error.start
    if wrong >= 0:
        line = data[:wrong].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: the file is not text in UTF-8", hint="save the file as UTF-8")
    return text


def _composed(text: str, source: Source) -> Any:
    import yaml

    fast: Any = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        # The loader in C takes a tenth of the time, which every program
        # pays. The other one below explains mistakes better.
        with contextlib.suppress(yaml.YAMLError, ValueError, OverflowError):
            # Look for aliases before composing: a few nested ones are enough to fill the memory.
            if trick(text, fast) is None:
                return yaml.compose(text, Loader=fast)
    try:
        rejected = trick(text, yaml.SafeLoader)
        if rejected is not None:
            problem, place, hint = rejected
            raise source.error(problem, place.line, place.column, hint)
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _translated(error, text, source) from error
    except (ValueError, OverflowError) as error:
        # An escape such as "\UFFFFFFFF" raises one of these.
        raise source.error(f"not YAML: {error}", 0, 0, None) from error


def trick(text: str | bytes, loader: Any) -> tuple[str, Any, str | None] | None:
    """Find the first alias (a bomb needs them), tag, or level too deep to read: what is wrong, its place, what to do.

    Raises:
        yaml.YAMLError: It is not YAML.
    """
    import yaml

    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH:
                return "this is nested too deeply", event.start_mark, None
            if isinstance(event, yaml.AliasEvent):
                return f'"*{event.anchor}": aliases are not supported', event.start_mark, "repeat the lines instead"
            tag = getattr(event, "tag", None)
            if tag not in (None, "!", _TAG + "str"):
                return f'"{tag}": tags are not supported', event.start_mark, "write the plain value"
    except yaml.scanner.ScannerError as error:
        if "maximum nesting depth" not in (error.problem or ""):
            # libyaml 0.2.6 counts the levels while it scans a line, and raises this before any event shows the depth.
            raise
        return "this is nested too deeply", error.problem_mark, None
    return None


def _translated(error: Any, text: str, source: Source) -> ConfigError:
    place = getattr(error, "problem_mark", None)
    if place is None:
        # This is an error about a character that YAML forbids. It has no mark, and `position` counts characters.
        before = text[: getattr(error, "position", 0)]
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
        return source.error("not YAML: it contains an unprintable character", line, column, "remove it")
    if error.context == "expected a single document in the stream":
        return source.error("the file has a second document", place.line, place.column, "remove the line `---`")
    around = source.lines[max(0, place.line - 1) : place.line + 1]
    return source.error(f"not YAML: {error.problem}", place.line, place.column, _space_after_colon(around) or _INDENT)


_INDENT = (
    "compare this line with those around it: spaces and no tabs before it, closed quotes, and quotes around a value "
    "that has a bracket or `: ` in it"
)


def _space_after_colon(lines: Sequence[str]) -> str:
    """Return what to do if one of these lines is `key:value`; it is not shown, as it may hold a secret."""
    keys = (re.match(_WITHOUT_SPACE, line) for line in lines)
    return next((f"put a space after the colon of `{key[1]}:`" for key in keys if key), "")


def _value(node: Any, source: Source, name: str) -> Value:
    kind = {"mapping": "map", "sequence": "list", "scalar": node.tag.replace(_TAG, "")}[node.id]
    place = (source, node.start_mark.line, node.start_mark.column, name, kind)
    if kind == "map":
        labels = (str(key.value) if key.id == "scalar" else "?" for key, _ in node.value)
        below = (f"{name}.{label}" if name else label for label in labels)
        pairs = ((_value(key, source, name), _value(value, source, at)) for (key, value), at in zip(node.value, below))
        return Value(*place, pairs=tuple(pairs))
    if kind == "list":
        return Value(*place, values=tuple(_value(item, source, f"{name}[{n}]") for n, item in enumerate(node.value)))
    return Value(*place, text=node.value, plain=not node.style, literal=node.style == "'")
