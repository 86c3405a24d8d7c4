"""Replace the placeholder in a package's files by the environment's prefix, and write scripts for entry points. Pure.

An entry point is a line `name = module:attribute`.
"""

import configparser
import os
import re

from .errors import BuildFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_LONGEST_SHEBANG = 127  # the limit of older kernels, which silently truncate a longer one
_SHEBANG = re.compile(rb"#![ \t]*(.*?)[ \t]*\r?\n")
_POINT = re.compile(r"\s*([^\s=/]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)\s*(\[.*\])?\s*\Z")
_SCRIPT = """import sys

from {module} import {first}

if __name__ == "__main__":
    sys.exit({attribute}())
"""


class PrefixTooLong(Exception):
    """The prefix does not fit into a binary file; the message has both lengths."""


def replace_in_text(data: bytes, placeholder: bytes, prefix: bytes) -> bytes:
    """Put the prefix into a text file, with a first line that the kernel can run."""
    return runnable(data.replace(placeholder, prefix))


def replace_in_binary(data: bytes, placeholder: bytes, prefix: bytes) -> bytes:
    """Put the prefix into a binary file; pad each string that holds it with NULs to the length it had."""
    spare = len(placeholder) - len(prefix)
    if spare < 0:
        raise PrefixTooLong("the prefix has %d bytes, the file has room for %d" % (len(prefix), len(placeholder)))

    def fill(match: "re.Match[bytes]") -> bytes:
        text = match.group()
        return text.replace(placeholder, prefix) + b"\0" * (spare * text.count(placeholder))

    return re.sub(re.escape(placeholder) + rb"[^\0]*", fill, data)


def runnable(data: bytes) -> bytes:
    """Make a script runnable although its first line is too long, or its program's path has a space."""
    match = _SHEBANG.match(data)
    if not match or not match.group(1).startswith(b"/"):
        return data
    line = match.group(1)
    if len(match.group().rstrip()) <= _LONGEST_SHEBANG and not _has_blank(line):
        return data
    program, arguments = _split(line)
    name = os.path.basename(program)
    if name.startswith((b"python", b"pypy")):
        return _through_shell(program) + data[match.end() :]
    return b"#!/usr/bin/env %s\n" % b" ".join([name, arguments]).strip() + data[match.end() :]


def shebang(python: str) -> bytes:
    """Return the first lines of a Python script."""
    return runnable(b"#!%s\n" % os.fsencode(python))


def _has_blank(line: bytes) -> bool:
    return b" " in _split(line)[0]


def _split(line: bytes) -> "tuple[bytes, bytes]":
    """Split into program and arguments; the program's folder may hold spaces, its name may not."""
    head, slash, tail = line.rpartition(b"/")
    name, _, arguments = tail.partition(b" ")
    return head + slash + name, arguments.strip()


def _through_shell(program: bytes) -> bytes:
    """Return two lines that a shell reads as an exec, and Python as a string."""
    quoted = re.sub(rb'([\\"$`])', rb"\\\1", program)
    return b"#!/bin/sh\n'''exec' \"%s\" \"$0\" \"$@\"\n' '''\n" % quoted


def entry_point_script(line: str, python: str) -> "Optional[tuple[str, bytes]]":
    """Return the name and the text of the script for an entry point; None if it has no attribute."""
    match = _POINT.match(line)
    if match is None:
        if ":" in line:
            raise BuildFailed("%r is no entry point" % line, stage="link")
        return None
    name, module, attribute = match.group(1), match.group(2), match.group(3)
    text = _SCRIPT.format(module=module, attribute=attribute, first=attribute.split(".")[0])
    return name, shebang(python) + text.encode()


def wheel_entry_points(text: str) -> "list[str]":
    """List the commands in a wheel's entry_points.txt."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    sections = [section for section in ("console_scripts", "gui_scripts") if parser.has_section(section)]
    return ["%s = %s" % pair for section in sections for pair in parser.items(section)]
