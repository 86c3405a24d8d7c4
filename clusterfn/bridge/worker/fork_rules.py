"""When a fork of this process is as good as a process whose interpreter is started, and how its memory is kept shared.

The template of an element's workers and the runners of a session fork by these rules. (OpenBLAS ends its threads itself
before every fork, which is why threads are counted after one.)
"""

from __future__ import annotations

import contextlib
import gc
import os

from ..supervisor import process_tree
from . import outputs

_GPU = "/dev/nvidia"
STARTS_PROCESSES = "it starts processes"


def lasting_trouble() -> str:
    """Return what of this process would not survive a fork, or would lead from it to others; "" for nothing."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if len(os.listdir("/proc/self/task")) > 1:
        return "it starts threads"
    if process_tree.descendants(os.getpid()):
        return STARTS_PROCESSES
    for fd in os.listdir("/proc/self/fd"):
        # It is the descriptor of the listing itself.
        with contextlib.suppress(OSError):
            if os.readlink("/proc/self/fd/%s" % fd).startswith(_GPU):
                return "it opens a GPU"
    return "it keeps another way to its output" if outputs.have_copies() else ""


def settle_memory() -> None:
    """Keep the collector away from all that is loaded: its first run in each fork would copy the pages of that."""
    gc.collect()
    gc.freeze()
