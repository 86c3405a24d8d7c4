"""Let /proc show the words and variables of a process that was forked from a template, as it would after an exec.

People, `ps` and other supervisors read there what a process is, to which job it belongs, and how it was started.
"""

from __future__ import annotations

# This is the C half alone, because `ctypes` costs 4 ms to import.
import _ctypes
import functools
import os
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..agent.libc import libc_function, pointer_type
from ..supervisor.process_tree import read_proc

_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14
# Where /proc/PID/stat has the code, the data, the heap and the stack, counted after the name of the process.
_CODE, _STACK, _DATA, _HEAP = 23, 25, 42, 44
# The kernel's `struct prctl_mm_map`: these areas, the words, the variables, and what stays.
_MAP = "<6Q Q 4Q Q 2I"
_SAME_PROGRAM = 0xFFFFFFFF

# /proc reads this memory.
_shown: list[Any] = []


class ShownWords(NamedTuple):
    """What a process is to show.

    Attributes:
        memory: These and its variables, as /proc has them.
        settings: The kernel's `struct prctl_mm_map`.
    """

    words: list[str]
    memory: Any
    settings: bytes


def show(words: list[str], variables: Mapping[str, str]) -> None:
    """Show these words and variables for this process.

    Raises:
        OSError: This kernel does not let a process change them: it is older than 3.18, or cannot restore processes.
        ImportError, AttributeError: This Python cannot call it.
    """
    show_prepared(prepare(words, variables))


def prepare(words: list[str], variables: Mapping[str, str]) -> ShownWords:
    """Prepare what a process that is forked from this one is to show: there, each page that this writes is copied."""
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    pairs = b"".join(os.fsencode("%s=%s" % each) + b"\0" for each in variables.items())
    size = len(text) + len(pairs)
    memory = _memory_type(size.bit_length())()
    memory.raw = text + pairs
    begin = _ctypes.addressof(memory)
    _, end_of_heap, areas, stack = _facts()
    places = [begin, begin + len(text), begin + len(text), begin + size]
    settings = struct.pack(_MAP, *areas, int(end_of_heap(0)), stack, *places, 0, 0, _SAME_PROGRAM)
    return ShownWords(words, memory, settings)


def show_prepared(shown: ShownWords) -> None:
    """Show for this process what was prepared; see `show`."""
    prctl = _facts()[0]
    if prctl(_PR_SET_MM, _PR_SET_MM_MAP, shown.settings, len(shown.settings), 0) != 0:
        raise OSError("the kernel does not let a process change what it shows")
    _shown[:] = [shown]
    prctl(_PR_SET_NAME, os.fsencode(os.path.basename(shown.words[0])) + b"\0", 0, 0, 0)
    # Python 3.10 and newer keep them too.
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = shown.words


@functools.lru_cache(maxsize=None)
def _memory_type(bits: int) -> Any:
    """Return the type of memory for 2**bits bytes; keep it, because making it takes longer than using it."""
    character = type("Character", (_ctypes._SimpleCData,), {"_type_": "c"})
    return type("Memory", (_ctypes.Array,), {"_type_": character, "_length_": 1 << bits})


@functools.lru_cache(maxsize=None)
def _facts() -> tuple[Callable[..., int], Any, list[int], int]:
    """Return `prctl`, `sbrk`, and where this program has its areas and its stack; a fork has them there too."""
    fields = [int(each) for each in read_proc("self", "stat").rpartition(b")")[2].split()[1:]]
    fields.insert(0, 0)
    areas = [*fields[_CODE : _CODE + 2], *fields[_DATA : _DATA + 2], fields[_HEAP]]
    kind = type("Function", (_ctypes.CFuncPtr,), {"_flags_": 1, "_restype_": pointer_type()})
    sbrk: Any = kind(_ctypes.dlsym(_ctypes.dlopen(None, 0), "sbrk"))  # type: ignore[arg-type]
    return libc_function("prctl"), sbrk, areas, fields[_STACK]
