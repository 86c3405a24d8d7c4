"""Let /proc show the words and the tag of a process that was forked from a template, as it would after an exec.

People, `ps` and other supervisors read there what a process is, and to which job it belongs.
"""

from __future__ import annotations

import os
import sys

from ..layout import TAG
from ..supervisor.process_tree import read_proc

# Where /proc/PID/stat says in which memory the words and the variables of a process are, counted after its name.
_WORDS_BEGIN, _WORDS_END, _VARIABLES_BEGIN = 45, 46, 47


def show_words(words: list[str]) -> None:
    """Show these words for this process.

    Raises:
        OSError, IndexError: This kernel does not let a process change them.
        ValueError: They are longer than the first ones.
    """
    begin, end = _memory(_WORDS_BEGIN), _memory(_WORDS_END)
    data = b"".join(os.fsencode(word) + b"\0" for word in words)
    if not begin or len(data) > end - begin:
        raise ValueError("no room for the words of a process")
    _write_memory(begin, data.ljust(end - begin, b"\0"))
    # Python 3.10 and newer keep them too.
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = words


def show_tag(before: str, tag: str) -> None:
    """Show this tag for this process, in the place of one of the same length."""
    place = read_proc("self", "environ").index(("%s=%s" % (TAG, before)).encode())
    _write_memory(_memory(_VARIABLES_BEGIN) + place, ("%s=%s" % (TAG, tag)).encode())


def _memory(place: int) -> int:
    return int(read_proc("self", "stat").rpartition(b")")[2].split()[place])


def _write_memory(begin: int, data: bytes) -> None:
    fd = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data, begin)
    finally:
        os.close(fd)
