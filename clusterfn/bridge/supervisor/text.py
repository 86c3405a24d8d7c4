"""Strings that are safe to show, and strings of this old interpreter as the files that travel have them.

Text that processes, hosts and other users write may move a terminal's cursor or set its title. `printable` removes
that, on hosts and in the library. Python 3.6 under LANG=C cannot encode a path with an umlaut that came out of JSON.
`native` makes such strings usable in system calls; `portable` turns them back before they are written. Pure.
"""

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_ESCAPES = (
    "\x1b(?:\\[[0-9;?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\\\))"  # whole sequences, with what they say
    # what is left of others, and signs that are not seen but turn the text around
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
# ASCII digits only: `int` reads digits of other scripts too.
DIGITS = frozenset("0123456789")
_LONGEST_COUNT = 18
_EVIDENCE_LINES = 20
# A secret with fewer characters would be found in every other word.
_SHORTEST_SECRET = 4
_LINE_LENGTH = 500
_BRIDGE_FRAME = re.compile(r'  File ".*/bridge/[0-9a-f]{64}/.*", line \d+ in ')


def native(value: "Any") -> "Any":
    """Return a value from JSON with its strings as os.fsencode needs them."""
    if isinstance(value, str):
        try:
            return os.fsdecode(value.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            # The text also holds other surrogates, so it comes from no name or path.
            return value
    return _each(value, native)


def portable(value: "Any") -> "Any":
    """Reverse `native`."""
    if isinstance(value, str):
        try:
            # Nearly all texts are plain.
            value.encode()
            return value
        except UnicodeEncodeError:
            pass
        try:
            return os.fsencode(value).decode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            # `native` has left this text as it is.
            return value
    return _each(value, portable)


def _each(value: "Any", convert: "Any") -> "Any":
    if isinstance(value, dict):
        return {convert(key): convert(item) for key, item in value.items()}
    return [convert(item) for item in value] if isinstance(value, (list, tuple)) else value


def shortened(text: str, most: int) -> str:
    """Shorten a text to so many columns of a terminal, with "…" for what is left out."""
    return text if width(text) <= most else cut(text, most - 1) + "\u2026"


def width(text: str) -> int:
    """How many columns of a terminal a text takes: two for each letter of Chinese, Japanese and Korean.

    Example:
        >>> width("a"), width("\u65e5\u672c"), width("o\u0308")
        (1, 4, 1)
    """
    return len(text) if not text or max(text) < "\x80" else sum(map(_columns_of, text))


def _columns_of(sign: str) -> int:
    # This import is late, because few texts need it.
    import unicodedata

    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in ("W", "F") else 1


def cut(text: str, most: int) -> str:
    """Return the beginning of a text that fits into so many columns."""
    if width(text) == len(text):
        return text[: max(most, 0)]
    for at, sign in enumerate(text):
        most -= _columns_of(sign)
        if most < 0:
            return text[:at]
    return text


def padded(text: str, columns: int) -> str:
    """Return a text with blanks behind it to so many columns."""
    return text + " " * (columns - width(text))


def how_to_correct(line: str, code: str, place: str) -> str:
    """What to do about a line of the host's own that failed with an exit code, in a place of clusterfn.yml."""
    if code == "127" and "module" in line.split():
        return "the shell has no command module: name the modules in modules: of the host, which finds it"
    return "correct that line in %s; end it with `|| true` if it may fail" % place


def number(text: str) -> "Optional[int]":
    """A count as programs write it; None for anything else, such as what is too long to be one."""
    return int(text) if 0 < len(text) <= _LONGEST_COUNT and DIGITS.issuperset(text) else None


def last_lines(raw: bytes, count: int = _EVIDENCE_LINES) -> "list[str]":
    """The last lines of some output, safe to show: decoded, without control characters, no line over 500 characters."""
    lines = raw.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    shown = [printable(line.rsplit("\r", 1)[-1]).rstrip() for line in lines]
    return [line[:_LINE_LENGTH] for line in shown if line and not _BRIDGE_FRAME.match(line)][-count:]


def printable(text: str) -> str:
    """`text` without anything that a terminal would obey; line breaks and tabs stay.

    Example:
        >>> printable("a\\x1b[2Jb\\x1b]0;title\\x07")
        'ab'
    """
    return re.sub(_ESCAPES, "", text).encode("utf-8", "backslashreplace").decode("utf-8")


def in_one_line(text: str) -> str:
    """Return `printable` text with blanks for line breaks and tabs."""
    return printable(" ".join(text.splitlines())).replace("\t", " ")


def masked(lines: "list[str]", secrets: "list[str]") -> "list[str]":
    """`lines` without the values of secrets, nor the lines of such as have several."""
    for part in parts_of_secrets(secrets):
        lines = [line.replace(part, "***") for line in lines]
    return lines


def parts_of_secrets(secrets: "list[str]") -> "list[str]":
    """Return all that is to be masked of these secrets; the longest first, as one may be a part of another."""
    parts = {part for secret in secrets for part in [secret] + secret.splitlines() if len(part) >= _SHORTEST_SECRET}
    return sorted(parts, key=len, reverse=True)


def format_size(count: float) -> str:
    """Write a number of bytes for people, with one digit after the point; a GB has 2**30 bytes, as in options.

    Example:
        >>> format_size(8 * 2**30), format_size(1500), format_size(12)
        ('8 GB', '1.5 KB', '12 bytes')
    """
    if count < 1024:
        return counted(int(count), "byte")
    units = ["TB", "GB", "MB"]
    unit, count = "KB", count / 1024.0
    # The number is rounded first, or it would read "1024 MB".
    while units and round(count, 1) >= 1024:
        unit, count = units.pop(), count / 1024.0
    return "%.15g %s" % (round(count, 1), unit)


def counted(count: int, word: str) -> str:
    """A number of things for people.

    Example:
        >>> counted(1, "file"), counted(2, "file")
        ('1 file', '2 files')
    """
    return "%d %s%s" % (count, word, "" if count == 1 else "s")


def format_duration(seconds: float) -> str:
    """Write seconds for people, in the two largest units that it has.

    Example:
        >>> format_duration(5400), format_duration(14 * 86400), format_duration(0.25)
        ('1 h 30 min', '14 d', '0.2 s')
    """
    if seconds < 9.95:
        return "%g s" % round(max(seconds, 0.0), 1)
    minutes, rest = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(["%d %s" % part for part in parts if part[0]][:2])
