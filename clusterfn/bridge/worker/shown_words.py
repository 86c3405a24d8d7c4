"""Let /proc show the words and variables of a process that was forked from a template, as it would after an exec.

People, `ps` and other supervisors read there what a process is, to which job it belongs, and how it was started.
"""

from __future__ import annotations

# This is the C half alone, because `ctypes` costs 4 ms to import.
import _ctypes
import os
import struct
import sys
from collections.abc import Mapping
from typing import Any

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


def show(words: list[str], variables: Mapping[str, str]) -> None:
    """Show these words and variables for this process.

    Raises:
        OSError: This kernel does not let a process change them: it is older than 3.18, or cannot restore processes.
        ImportError, AttributeError: This Python cannot call it.
    """
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    pairs = b"".join(os.fsencode("%s=%s" % each) + b"\0" for each in variables.items())
    character = type("Character", (_ctypes._SimpleCData,), {"_type_": "c"})
    size = len(text) + len(pairs)
    memory: Any = type("Memory", (_ctypes.Array,), {"_type_": character, "_length_": size})()
    memory.raw = text + pairs
    begin = _ctypes.addressof(memory)
    fields = [int(each) for each in read_proc("self", "stat").rpartition(b")")[2].split()[1:]]
    fields.insert(0, 0)
    code, data, heap = fields[_CODE : _CODE + 2], fields[_DATA : _DATA + 2], [fields[_HEAP], _end_of_heap()]
    places = [begin, begin + len(text), begin + len(text), begin + size]
    areas = struct.pack(_MAP, *code, *data, *heap, fields[_STACK], *places, 0, 0, _SAME_PROGRAM)
    prctl = libc_function("prctl")
    if prctl(_PR_SET_MM, _PR_SET_MM_MAP, areas, len(areas), 0) != 0:
        raise OSError("the kernel does not let a process change what it shows")
    _shown[:] = [memory]
    prctl(_PR_SET_NAME, os.fsencode(os.path.basename(words[0])) + b"\0", 0, 0, 0)
    # Python 3.10 and newer keep them too.
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = words


def _end_of_heap() -> int:
    kind = type("Function", (_ctypes.CFuncPtr,), {"_flags_": 1, "_restype_": pointer_type()})
    sbrk: Any = kind(_ctypes.dlsym(_ctypes.dlopen(None, 0), "sbrk"))  # type: ignore[arg-type]
    return int(sbrk(0))
