"""What Linux offers and Python does not: prctl. No decisions here."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> bool:
    """Adopt descendants whose parents end; False where the kernel (before 3.4, or not Linux) cannot."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int, parent: int) -> None:
    """Be sent `signum` when the parent ends; at once if it is no longer `parent`."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def _prctl(option: int, value: int) -> bool:
    zero = ctypes.c_ulong(0)
    try:
        return bool(_LIBC.prctl(option, ctypes.c_ulong(value), zero, zero, zero) == 0)
    except AttributeError:  # no prctl: not Linux
        return False


def describe_signal(number: int) -> str:
    """The signal's name, SIGKILL and the like."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number
