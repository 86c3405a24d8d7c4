"""What a host wrote, on its way into code here: JSON, a module's name, a word of a shell command.

A host that is not trusted chooses each of them. So they are checked where they are read, by these functions alone, and
not where they are used: in a pattern, a path, an import, or a command that a person copies into a shell.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from clusterfn.bridge.supervisor.text import in_one_line, shortened
from clusterfn.errors import HostError

# What a host wrote must not fill the screen, or a command, without end.
_LONGEST_NAME = 200
_LONGEST_WORD = 500
# Larger numbers are no sizes, and could not be formatted in reasonable time.
_MOST = 1 << 63
# The most bytes of a line. Even an exception's message may be this large.
LONGEST_LINE = 64 << 20
# A module's name, or with hyphens a project's.
_NAME = re.compile(r"[^\W\d]\w*(?:[.-]\w+)*")


@contextlib.contextmanager
def reading(host: str, what: str) -> Iterator[None]:
    """Read what a host wrote, which may be no JSON, or lack what it needs.

    Args:
        what: It, for the message: "its list of jobs".

    Raises:
        HostError: The block could not make sense of it.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        message = f"{host} sent {what} in a form that clusterfn cannot read"
        evidence = [in_one_line(shortened(why, _LONGEST_WORD))]
        hint = f"check whether the files of clusterfn on {host} are damaged, or written by another version"
        raise HostError(message, host=host, evidence=evidence, hint=hint) from error


class Lines:
    """Puts together lines that a host sends in pieces, in a time that grows with their bytes.

    A line that is longer than any that clusterfn writes is left out as a whole.
    """

    __slots__ = ("_is_too_long", "_partial")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete with these bytes, without their ends."""
        head, end, rest = data.partition(b"\n")
        self._hold(head)
        if not end:
            return []
        # Only the first line continues an earlier piece, so the others need not be copied together.
        first = [] if self._is_too_long else [bytes(self._partial)]
        *lines, last = rest.split(b"\n")
        self._partial = bytearray()
        self._is_too_long = False
        self._hold(last)
        return first + lines

    def _hold(self, data: bytes) -> None:
        self._is_too_long = self._is_too_long or len(self._partial) + len(data) > LONGEST_LINE
        if self._is_too_long:
            self._partial = bytearray()
        else:
            self._partial += data


def json_object(line: str | bytes) -> dict[str, Any]:
    """Return what a line of JSON says; {} if it is damaged, or no object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def count(value: object) -> int:
    """Return a host's number of bytes, files or seconds; raise ValueError if it cannot be shown."""
    # In Python, True is an int, too.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise ValueError(f"a number, not {value!r:.80}")
    return value


def shaped(value: Any, shape: Any) -> Any:
    """Return what a host wrote as JSON if it has this shape.

    Args:
        shape: A type; `int` means a `count`. A list with the shape of its entries. A dict with the shapes of those
            entries that it must have, or under `...` with that of all of them.

    Raises:
        ValueError, KeyError: It has another.
    """
    if shape is int:
        return count(value)
    expected: type[Any] = shape if isinstance(shape, type) else type(shape)
    if not isinstance(value, expected):
        raise ValueError(f"{value!r:.80}")
    if isinstance(shape, list):
        for item in value:
            shaped(item, shape[0])
    elif isinstance(shape, dict):
        for name, below in shape.items():
            for entry in value.values() if name is ... else [value[name]]:
                shaped(entry, below)
    return value


def module_name(value: object) -> str:
    """Return the name of a module or a project if it is one; "" otherwise: it goes into patterns, paths and commands.

    Example:
        >>> module_name("a.b"), module_name("**/x"), module_name("x; rm -rf ~")
        ('a.b', '', '')
    """
    is_one = type(value) is str and len(value) <= _LONGEST_NAME and _NAME.fullmatch(value) is not None
    return str(value) if is_one else ""


def shell_word(value: object) -> str:
    """Return a text as one word of a shell command that a person may copy: on one line, quoted if need be.

    Example:
        >>> shell_word("/opt/bin/python"), shell_word("/x; curl evil")
        ('/opt/bin/python', "'/x; curl evil'")
    """
    return shlex.quote(shortened(in_one_line(str(value)), _LONGEST_WORD))
