"""Make a pipe larger once it carries much: the processes at its ends then wait for each other less often.

Client and agent both use this. Not from the start: Linux lets a user have 64 MB of larger pipes, and gives further
pipes of that user less than usual.
"""

import sys

USUAL = 64 * 1024  # bytes that Linux gives a pipe: a read of as many has found it full
_LARGE = 512 * 1024
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032  # which Python names from 3.10 on


def widen_pipe(fd: int) -> None:
    """Make a pipe of Linux larger, unless it is already; leave anything else as it is."""
    if sys.platform != "linux":
        return
    import fcntl  # here: most agents never need it

    try:
        if fcntl.fcntl(fd, _F_GETPIPE_SZ) < _LARGE:  # with pages of 64 KB, each is larger from the start
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _LARGE)
    except OSError:  # it is no pipe, or this user has too many large ones
        return
