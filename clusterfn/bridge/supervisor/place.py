"""Where an attempt runs, as its event "starting" keeps it: the machine, its driver, and the environment.

Reads, decides nothing.
"""

import os

from ..layout import ABOUT, PLAN, environment_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .job import JobFolder

_DRIVER = "/sys/module/nvidia/version"
_LIBC = "CS_GNU_LIBC_VERSION"


def facts(job: "JobFolder") -> "dict[str, Any]":
    """Of this machine and of the environment; None for what there is not."""
    made = job.spec.get("building")
    return {
        "node": job.node,
        "platform": _platform(),
        "driver": _driver(),
        "python": job.spec["python"],
        "environment": made["id"] if made else None,
        "lock": "/".join((environment_dir(made["root"], made["id"]), ABOUT, PLAN)) if made else None,
    }


def _platform() -> str:
    """Kernel, processor and C library."""
    machine = os.uname()
    libc = os.confstr(_LIBC) if _LIBC in os.confstr_names else None
    return ", ".join(filter(None, ("%s %s %s" % (machine.sysname, machine.release, machine.machine), libc)))


def _driver() -> "Optional[str]":
    """The version of the NVIDIA driver that is loaded."""
    try:
        with open(_DRIVER, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
