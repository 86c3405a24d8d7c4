"""Make a pipe larger once it carries much: the processes at its ends then wait for each other less often.

Client and agent both use this. Not from the start: Linux lets a user have 64 MB of larger pipes, and gives further
pipes of that user less than usual.
"""

import sys

# Linux gives a pipe this many bytes, so a read that returns as many has found the pipe full.
USUAL = 64 * 1024
_LARGE = 512 * 1024
# Linux's numbers for fcntl, which Python names from 3.10 on.
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032


def widen_pipe(fd: int) -> None:
    """Make a pipe of Linux larger, unless it is already; leave anything else as it is."""
    if sys.platform != "linux":
        return
    # Most agents never carry enough to need this module.
    import fcntl

    try:
        # Where memory pages have 64 KB, pipes are larger than this from the start and must not be made smaller.
        if fcntl.fcntl(fd, _F_GETPIPE_SZ) < _LARGE:
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _LARGE)
    except OSError:
        # The descriptor is not a pipe, or this user already has as many large pipes as Linux allows.
        return
