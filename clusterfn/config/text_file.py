"""Decode the files that users write: by their byte order mark, as pip, uv and YAML do, else as UTF-8."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from clusterfn.errors import ConfigError

# uv reads these too. It does not read UTF-32, which no usual editor writes.
_BYTE_ORDERS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_HEADER = re.compile(r"^# /// script[^\S\n]*\n((?:#(?: .*)?\n)+?)# ///[^\S\n]*$", re.MULTILINE)
_SAVE = "save the file as UTF-8"


def read_text(path: Path, only: str = "") -> str:
    """Read a text file.

    Args:
        only: The one encoding that its format allows; "" for any that has a mark.

    Raises:
        ConfigError: It cannot be read, or is not text.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="correct its name or its mode") from error
    encoding = encoding_of(data)[1]
    if only and encoding != only:
        raise ConfigError(f"{path} is in {_title(encoding)}, and its format allows {_title(only)} alone", hint=_SAVE)
    return decode(data, str(path))


def encoding_of(data: bytes) -> tuple[bytes, str]:
    """Return the byte order mark with which a file begins, and its encoding."""
    return next((pair for pair in _BYTE_ORDERS if data.startswith(pair[0])), (b"", "utf-8"))


def decode(data: bytes, path: str) -> str:
    """Decode what a file holds.

    Raises:
        ConfigError: It is not text; with the place of the first byte that is none.
    """
    prefix, encoding = encoding_of(data)
    try:
        text = data[len(prefix) :].decode(encoding)
    except UnicodeDecodeError as error:
        before = data[len(prefix) :][: error.start].decode(encoding)
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ConfigError(f"{path}:{line}:{column}: this byte is not {_title(encoding)}", hint=_SAVE) from error
    if "\0" in text:
        # This is UTF-16 without a byte order mark, or no text at all.
        line = text[: text.index("\0")].count("\n") + 1
        raise ConfigError(f"{path}:{line}: the file is not text, it has a zero byte", hint=_SAVE)
    return text


def _title(encoding: str) -> str:
    return "-".join(encoding.upper().split("-")[:2])


def header_of_script(text: str) -> str:
    """Return the TOML in which a script of Python names its own packages (PEP 723); "" if it has none."""
    header = _HEADER.search(text.replace("\r\n", "\n"))
    return re.sub(r"^# ?", "", header[1], flags=re.MULTILINE) if header else ""
