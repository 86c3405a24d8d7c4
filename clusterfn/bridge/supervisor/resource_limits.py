"""The limits of a process that the kernel keeps (`ulimit`): raise what may be raised, and say what stays.

SLURM gives a job the soft limits of the login from which it was submitted, and a login may have some that are meant for
interactive programs. The hard ones are those of the machine, or of the administrator.
"""

import _signal as signal  # type: ignore[import-not-found] # the C half alone, and no `text`: workers wait for this
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

# Not the stack, whose limit is also the size of each thread's, core dumps, nor open files: old programs close every
# descriptor that they may have open.
_RAISED = ("CPU", "FSIZE", "AS", "DATA", "RSS", "NPROC", "MEMLOCK")
_TICK_S = 0.5  # the kernel does not count as `wait` does


def raise_limits() -> None:
    """Raise the soft limits of this process, and of what it starts, to the hard ones."""
    for name in _RAISED:
        _raise(getattr(resource, "RLIMIT_" + name, None))


def _raise(limit: "Optional[int]") -> None:
    if limit is None:  # this system has no such limit
        return
    soft, hard = resource.getrlimit(limit)
    if soft in (resource.RLIM_INFINITY, hard):
        return
    try:
        resource.setrlimit(limit, (hard, hard))
    except (OSError, ValueError):  # not Linux, where the hard one may be more than a process can have
        return


def notes(memory_bytes: "Optional[int]") -> "list[str]":
    """Say which limits leave a process less memory than the job asked for."""
    from .text import size

    found = []
    for limit, what, name in (
        (resource.RLIMIT_AS, "address space", "RLIMIT_AS, `ulimit -v`"),
        (resource.RLIMIT_DATA, "data", "RLIMIT_DATA, `ulimit -d`"),
    ):
        soft = resource.getrlimit(limit)[0]
        if memory_bytes and 0 <= soft < memory_bytes:
            found.append(
                "a process may have only %s of %s on this machine (%s), less than memory= asks for: %s"
                % (size(soft), what, name, size(memory_bytes))
            )
    return found


def describe_end(number: int, cpu_s: float) -> str:
    """Name the limit that ended a process; "" if none did.

    Args:
        number: The signal.
        cpu_s: What the process used of CPU time. At its hard limit the kernel sends SIGKILL.
    """
    from .text import duration, size

    of_signals = {
        signal.SIGXCPU: (resource.RLIMIT_CPU, "CPU time", "RLIMIT_CPU, `ulimit -t`", duration),
        signal.SIGXFSZ: (resource.RLIMIT_FSIZE, "the size of a file", "RLIMIT_FSIZE, `ulimit -f`", size),
    }
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if number == signal.SIGKILL and 0 <= hard <= cpu_s + _TICK_S:
        number = signal.SIGXCPU
    if number not in of_signals:
        return ""
    limit, what, name, shown = of_signals[number]
    soft = resource.getrlimit(limit)[0]
    value = "which it has set itself" if soft < 0 else shown(soft)
    return "the limit of one process on %s, %s (%s)" % (what, value, name)
