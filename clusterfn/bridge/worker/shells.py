"""Shells that a command needs: values in their lines, the interpreters of scripts, and who hears of a warning.

A value stays one text in a line, whatever signs it has and whatever quotes surround it: one with signs that a shell
would read is given by a variable, so that the shell never reads it as code.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from ..supervisor import process_tree

_VARIABLE = "CLUSTERFN_VALUE_%s"
_SHELLS = ("bash", "sh", "ash", "dash", "ksh", "zsh")
_LONGEST_FIRST_LINE = 4096
_PLAIN, _SINGLE, _DOUBLE, _ANSI, _TICKED = "plain", "'", '"', "$'", "`"
_COMMENT = re.compile(r"(?<![^\s;&|(])#[^\n]*")
# By what surrounds a place: single quotes are closed for the value, and opened again.
_GIVEN = {_SINGLE: "'\"${%s}\"'", _ANSI: "'\"${%s}\"$'", _DOUBLE: "${%s}", _PLAIN: '"${%s}"', _TICKED: '"${%s}"'}


def fill_line(line: str, values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return a line with its values, and the variables that it then needs.

    Example:
        >>> fill_line("echo '{a}' {b}", {"a": "$(id)", "b": 0.1})
        ('echo \\'\\'"${CLUSTERFN_VALUE_a}"\\'\\' 0.1', {'CLUSTERFN_VALUE_a': '$(id)'})
    """
    if not values:
        return line, {}
    filled, needed, end = [], {}, 0
    for start, stop, name, inside in _places(line, values):
        text = str(values[name])
        given = text
        # It has characters that a shell would read, or none at all.
        if shlex.quote(text) != text:
            needed[_VARIABLE % name] = text
            given = _GIVEN[inside] % (_VARIABLE % name)
        filled += [line[end:start], given]
        end = stop
    return "".join([*filled, line[end:]]), needed


def _places(line: str, values: Mapping[str, Any]) -> Iterator[tuple[int, int, str, str]]:
    """Yield where each place begins and ends, its name, and what surrounds it."""
    place = re.compile(r"(?<!\$)\{(%s)\}" % "|".join(map(re.escape, values)))
    around, at = [_PLAIN], 0
    while at < len(line):
        inside, sign, step = around[-1], line[at], 1
        found = place.match(line, at)
        if found:
            yield at, found.end(), found[1], inside
            step = found.end() - at
        elif inside in (_SINGLE, _ANSI):
            if sign == "'":
                around.pop()
            step = 2 if sign == "\\" and inside == _ANSI else 1
        elif sign == "\\":
            step = 2
        elif line.startswith("$(", at):
            around.append(_PLAIN)
            step = 2
        elif sign == "`":
            around.pop() if _TICKED in around else around.append(_TICKED)
        elif inside == _DOUBLE:
            if sign == '"':
                around.pop()
        elif line.startswith("$'", at):
            around.append(_ANSI)
            step = 2
        elif sign in "'\"":
            around.append(sign)
        elif sign == "(":
            around.append(_PLAIN)
        elif sign == ")" and len(around) > 1:
            around.pop()
        elif sign == "#" and (comment := _COMMENT.match(line, at)):
            # An apostrophe in a comment opens nothing.
            step = comment.end() - at
        at += step


def interpreter_of(script: str) -> list[str]:
    """Return what runs a script: nothing if the kernel does, else what its first line names, or bash.

    The mode of the script stays: with `cwd=` it is a file of the user's own.
    """
    with open(script, "rb") as file:
        begins = file.readline(_LONGEST_FIRST_LINE)
    if begins.startswith(b"#!"):
        return [] if os.access(script, os.X_OK) else os.fsdecode(begins[2:]).strip().split(None, 1)
    return [] if begins.startswith(b"\x7fELF") else [shutil.which("bash") or "/bin/sh"]


def to_warn(pid: int, number: int) -> list[int]:
    """Return whom a signal to a command is meant for: in place of a shell, the programs that it runs.

    A shell would end by it and leave its programs, unless it has a trap. Then it also sees to what runs in background.
    Of a pipe, only the program that it begins with is meant: what reads from it ends by itself, and takes the rest.
    """
    program = process_tree.command_line(pid)[:1]
    if not program or os.path.basename(os.fsdecode(program[0])).lstrip("-") not in _SHELLS:
        return [pid]
    has_trap = process_tree.catches(pid, number)
    # A script lets what has `&` ignore it. What this process ignores, as below `nohup`, all of them do.
    tells = has_trap and signal.getsignal(signal.SIGQUIT) is not signal.SIG_IGN
    children = process_tree.children_of(pid)
    pipes = {process_tree.pipe_of(child, 1) for child in children} - {""}
    below = []
    for child in children:
        is_background = tells and process_tree.ignores(child, signal.SIGQUIT)
        if not is_background and process_tree.pipe_of(child, 0) not in pipes:
            below += to_warn(child, number)
    return [pid, *below] if has_trap or not below else below
