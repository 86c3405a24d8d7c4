"""Protect file descriptors from a function that closes in a loop, and from programs that would inherit them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource

# The first number that the limits allow is taken, above what daemons close in a loop.
_HIGH = (5000, 900, 200, 3)


def out_of_reach(fd: int) -> int:
    """Move `fd` to a high number that programs started by exec do not inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for least in _HIGH:
        try:
            copy = _copy_above(least, fd, soft, hard)
        except (OSError, ValueError) as error:
            # EINVAL says that the number is above the limit of open files.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            continue
        os.close(fd)
        return copy
    return fd


def _copy_above(least: int, fd: int, soft: int, hard: int) -> int:
    """Copy `fd`, raising the limit of open files (often 1024) meanwhile: the copy survives the lower limit."""
    raised = soft != resource.RLIM_INFINITY and soft <= least + 8
    if raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least + 9, hard))
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        if raised:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files() -> dict[int, str]:
    """Return what this process has open, by descriptor: paths, and names such as "pipe:[7]"."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        # It is the descriptor of the listing itself.
        with contextlib.suppress(OSError):
            found[int(fd)] = os.readlink("/proc/self/fd/%s" % fd)
    return found


def keep_from_programs() -> None:
    """Let programs that the function starts inherit nothing that is open now, such as GPU leases."""
    for name in os.listdir("/dev/fd"):
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:
            # It is the descriptor of the listing itself.
            continue
