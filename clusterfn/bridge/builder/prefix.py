"""Writes the environment's prefix where a package has a placeholder, and the first lines of scripts. Pure."""

import os
import re

_LONGEST_SHEBANG = 127  # of older kernels; a longer one is cut off without a word
_SHEBANG = re.compile(rb"#![ \t]*(.*?)[ \t]*\r?\n")


class TooLong(Exception):
    """The prefix does not fit into a binary file; the message has both lengths."""


def in_text(data: bytes, placeholder: bytes, prefix: bytes) -> bytes:
    """A text file with the prefix in it, and a first line that the kernel can run."""
    return runnable(data.replace(placeholder, prefix))


def in_binary(data: bytes, placeholder: bytes, prefix: bytes) -> bytes:
    """A binary file with the prefix in it, each string that holds it filled up with NULs to the length it had."""
    spare = len(placeholder) - len(prefix)
    if spare < 0:
        raise TooLong("the prefix has %d bytes, the file has room for %d" % (len(prefix), len(placeholder)))

    def fill(match: "re.Match[bytes]") -> bytes:
        text = match.group()
        return text.replace(placeholder, prefix) + b"\0" * (spare * text.count(placeholder))

    return re.sub(re.escape(placeholder) + rb"[^\0]*", fill, data)


def runnable(data: bytes) -> bytes:
    """A script that can be run although its first line is too long, or its program's path has a blank."""
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
    """The first lines of a Python script."""
    return runnable(b"#!%s\n" % os.fsencode(python))


def _has_blank(line: bytes) -> bool:
    return b" " in _split(line)[0]


def _split(line: bytes) -> "tuple[bytes, bytes]":
    """The program and its arguments; the program's path may hold blanks, its name holds none."""
    head, slash, tail = line.rpartition(b"/")
    name, _, arguments = tail.partition(b" ")
    return head + slash + name, arguments.strip()


def _through_shell(program: bytes) -> bytes:
    """Two lines that a shell reads as an exec and Python as a string."""
    quoted = re.sub(rb'([\\"$`])', rb"\\\1", program)
    return b"#!/bin/sh\n'''exec' \"%s\" \"$0\" \"$@\"\n' '''\n" % quoted
