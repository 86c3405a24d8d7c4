"""This machine as its queue sees it: its name, its clock since it was started, what it has. Reads only."""

import os
import re
import sys
import time

from ..layout import MACHINES
from ..supervisor.process_tree import read_proc

_BOOTTIME = 7  # CLOCK_BOOTTIME, which Python names from 3.7 on: goes on while the machine sleeps


def name() -> str:
    """<machine-id>-<hostname>: cloned images share the first, a home may be shared by machines."""
    number = _first_line("/etc/machine-id") or _first_line("/var/lib/dbus/machine-id") or "unknown"
    return re.sub(r"[^A-Za-z0-9._-]", "_", "%s-%s" % (number, os.uname()[1]))


def folder(root: str) -> str:
    """Return the folder of this machine's queue and journal below a root, which other machines may share."""
    return os.path.join(root, MACHINES, name())


def now_ns() -> int:
    """Nanoseconds since the machine was started, by a clock that is never set."""
    return int(time.clock_gettime(_BOOTTIME) * 1e9)


def now_s() -> int:
    """The same in whole seconds."""
    return now_ns() // 10**9


def cores() -> int:
    """How many may be used here."""
    if sys.platform.startswith("linux"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_mb() -> int:
    """All of it."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) >> 20


def available_mb() -> int:
    """What could be had now without swapping."""
    for line in read_proc("meminfo").split(b"\n"):
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) >> 10
    return memory_mb()  # a kernel before 3.14 does not say


def _first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""
