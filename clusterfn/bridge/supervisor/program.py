"""The program `supervise.py`: run one command, and import only what that one needs, as calls wait for most of them."""

import gc
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

EXIT_NO_ROOM = 28
# How many containers a job's supervisor may make before the collector of garbage looks at them: all that it loads for a
# plain job, so that a short job has none, and a long one few.
_CONTAINERS = 20000
# Not the stack, whose limit is also the size of each thread's, core dumps, nor open files: old programs close every
# descriptor that they may have open.
_RAISED = ("RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_RSS", "RLIMIT_NPROC", "RLIMIT_MEMLOCK")


def main(argv: "list[str]") -> int:
    """Run one command; the exit code is the process's, `EXIT_NO_ROOM` if the disk takes not even an outcome."""
    os.umask(0o077)
    try:
        return _run_command(argv)
    except OSError as error:
        return _report_full_disk(error, argv[1])


def run_job(folder: str, status: "Optional[str]" = None, keeper: int = -1) -> int:
    """Run a job (`main.run`)."""
    # This import is late, because other commands do without it.
    from .main import run

    raise_limits()
    gc.set_threshold(_CONTAINERS)
    try:
        return run(folder, status, keeper)
    except OSError as error:
        return _report_full_disk(error, folder)


def _report_full_disk(error: OSError, folder: str) -> int:
    from ..layout import DISK_ERRORS
    from .verdict import print_disk_full

    if error.errno not in DISK_ERRORS:
        raise error
    print_disk_full(error, folder)
    return EXIT_NO_ROOM


def _run_command(argv: "list[str]") -> int:
    command = "".join(argv[:1])
    count = len(argv)
    if command == "run" and count in (2, 3):
        return run_job(argv[1], argv[2] if count == 3 else None)
    if command == "node" and count >= 3:
        raise_limits()
        from .nodes import run_on_node

        return run_on_node(*argv[1:])
    if command == "template" and count == 2:
        raise_limits()
        from .keeper import start_template

        return start_template(argv[1])
    from .commands import run_command

    return run_command(argv)


def raise_limits() -> None:
    """Raise the limits that the kernel keeps (`ulimit`) of this process, and of what it starts, as far as it lets one.

    SLURM gives a job the soft limits of the login from which it was submitted, and a login may have some that are meant
    for interactive programs. The hard ones are those of the machine, or of the administrator.
    """
    import resource

    for limit in [getattr(resource, name) for name in _RAISED if hasattr(resource, name)]:
        soft, hard = resource.getrlimit(limit)
        if soft in (resource.RLIM_INFINITY, hard):
            continue
        try:
            resource.setrlimit(limit, (hard, hard))
        except (OSError, ValueError):
            # Outside Linux, the hard limit may be more than a process can have.
            continue
