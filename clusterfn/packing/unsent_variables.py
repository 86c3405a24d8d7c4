"""Find what this program has set in `os.environ`: a job has the variables of its host, of `env=` and of `secrets=`.

A library sets variables too, so only those count that the user's own code names. clusterfn does not send them for the
reasons of docs/decisions/0069-changed-modules.md.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import types
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from clusterfn.bridge.attributes import attribute
from clusterfn.config.forms import is_set_by_clusterfn
from clusterfn.packing import code_facts

if TYPE_CHECKING:
    from clusterfn.hosts.bridge_bundle import FileBundle

_SETTERS = frozenset(["putenv", "setdefault", "update"])
# Maps changed variables, functions, sources and the file of the script to the answer: searching all sources at each
# call of a session would take a quarter of its time.
_answers: dict[tuple[tuple[str, ...], tuple[types.CodeType, ...], str, str], tuple[str, ...]] = {}
_MOST_ANSWERS = 256


def find(functions: Collection[types.FunctionType], sources: FileBundle | None) -> tuple[str, ...]:
    """Return the names of variables that this program has set and the call may use, but does not set itself.

    Args:
        functions: Those that are sent by value.
        sources: The user's own modules that are sent.
    """
    before = _at_start()
    names = tuple(sorted(name for name, value in os.environ.items() if before.get(name) != value))
    # A program that has given itself a title has overwritten what the system shows.
    if not names or before.keys().isdisjoint(os.environ):
        return ()
    script = attribute(sys.modules["__main__"], "__file__") or ""
    key = names, tuple(each.__code__ for each in functions), sources.digest if sources else "", script
    if key not in _answers:
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        _answers[key] = _missed(names, functions, sources, script)
    return _answers[key]


def _missed(
    names: tuple[str, ...], functions: Collection[types.FunctionType], sources: FileBundle | None, script: str
) -> tuple[str, ...]:  # fmt: skip
    codes = [part for each in functions for part in code_facts.read(each.__code__)]
    texts = [data for file, data in sources.files.items() if file.endswith(".py")] if sources else []
    program = "".join(linecache.getlines(script)).encode()
    used = (name for name in names if _is_missed(name, codes, texts, program))
    return tuple(name for name in used if not is_set_by_clusterfn(name))


@functools.lru_cache(maxsize=1)
def _at_start() -> dict[str, str]:
    """Return the variables with which this process began; {} if the system does not show them."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if b"=" in entry)


def _is_missed(name: str, codes: Collection[code_facts.Facts], texts: Collection[bytes], program: bytes) -> bool:
    """Whether the call may use the variable, and nothing that is sent may set it."""
    word = os.fsencode(name)
    near = [text for text in texts if word in text]
    using = [code for code in codes if name in code.constants]
    if not near and not using and word not in program:
        return False
    quoted = rb"""(['"])%b\1""" % re.escape(word)
    sets = re.compile(rb"(?:environ\s*\[|putenv\(|setdefault\()\s*%b\s*(?:,|\]\s*=(?!=))" % quoted)
    if any(map(sets.search, near)) or any(name in code.keys or not _SETTERS.isdisjoint(code.names) for code in using):
        return False
    return bool(using) or any(re.search(quoted, text) for text in near) or sets.search(program) is not None
