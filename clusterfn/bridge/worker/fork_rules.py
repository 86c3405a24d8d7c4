"""When a fork of this process is as good as a process whose interpreter is started, and how its memory is kept shared.

The template of an element's workers and the runners of a session fork by these rules. (OpenBLAS ends its threads itself
before every fork, which is why threads are counted after one.)
"""

from __future__ import annotations

import fcntl
import gc
import os
from typing import AbstractSet

from ..supervisor import process_tree
from . import outputs
from .descriptors import open_files

_GPU = "/dev/nvidia"
# Devices that give to each reader the same, however many share them.
_SHARED_BY_ALL = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
STARTS_PROCESSES = "it starts processes"


def lasting_trouble(kept: AbstractSet[str]) -> str:
    """Return what of this process would not survive a fork, or would lead from it to others; "" for nothing.

    Args:
        kept: What was kept open before, as `kept_open` names it: all that came since is shared by forks.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if len(os.listdir("/proc/self/task")) > 1:
        return "it starts threads"
    if process_tree.descendants(os.getpid()):
        return STARTS_PROCESSES
    if any(path.startswith(_GPU) for path in open_files().values()):
        return "it opens a GPU"
    if outputs.have_copies():
        return "it keeps another way to its output"
    return "it keeps a file, a socket or shared memory open" if kept_open() - kept else ""


def kept_open() -> set[str]:
    """Name the open files of this process and the memory that it shares with its forks.

    Forks share the place in a file, what a socket or a selector wakes, and the locks and counters of multiprocessing.
    """
    found = {"%d %s" % each for each in open_files().items() if each[1] not in _SHARED_BY_ALL}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return found | {line for line in maps if line.split(" ", 2)[1] == "rw-s"}


def inherited() -> set[str]:
    """Name the files that this process has had open since its program was started, as `kept_open` does."""
    # An exec closes what has this flag, which Python sets for all that it opens.
    return {
        "%d %s" % each for each in open_files().items() if not fcntl.fcntl(each[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    }


def settle_memory() -> None:
    """Keep the collector away from all that is loaded: its first run in each fork would copy the pages of that."""
    gc.collect()
    gc.freeze()
