"""Call the C library by the C half of `ctypes` alone: groups and parents of processes, and news of changed folders.

Loading `ctypes` itself takes 4 ms, and each job starts three processes that need one call each.
"""

import os
import signal
import struct
import sys
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Set, Tuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
# The number of clone(2) by the kind of machine.
_CLONE = {"x86_64": 56, "aarch64": 220, "ppc64le": 120}


@lru_cache(maxsize=None)
def libc_function(name: str) -> "Callable[..., int]":
    """Return a function of the C library, for arguments that are bytes or whole numbers of at most 31 bits.

    Raises:
        ImportError, OSError, AttributeError: This Python or its C library does not have it.
    """
    import _ctypes

    # None means this process itself, as a null pointer does for dlopen(3).
    process = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    address = _ctypes.dlsym(process, name)
    call = _ctypes.call_function
    return lambda *arguments: int(call(address, arguments))


class Inotify:
    """Reports changed folders; on network file systems only the changes that this machine makes."""

    # IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_TO and IN_CREATE. Python has no names for them.
    MASK = 0x2 | 0x8 | 0x80 | 0x100
    EVENT = struct.Struct("iIII")

    def __init__(self) -> None:
        self.add_watch, self.remove_watch = libc_function("inotify_add_watch"), libc_function("inotify_rm_watch")
        self.fd = libc_function("inotify_init1")(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError("the kernel gives this user no more inotify descriptors")

    def add(self, folder: str) -> int:
        """Watch a folder and return its number, the same each time; -1 if the kernel refuses."""
        return self.add_watch(self.fd, os.fsencode(folder), self.MASK)

    def remove(self, number: int) -> None:
        self.remove_watch(self.fd, number)

    def events(self) -> "Set[int]":
        """Return the numbers of the folders in which something changed."""
        return {number for number, _ in self.changes()}

    def changes(self) -> "Set[Tuple[int, str]]":
        """Return what changed: the number of its folder, and its name there."""
        try:
            data = os.read(self.fd, 64 * 1024)
        except BlockingIOError:
            return set()
        changes = set()
        at = 0
        while at < len(data):
            number, _, _, size = self.EVENT.unpack_from(data, at)
            at += self.EVENT.size + size
            changes.add((number, os.fsdecode(data[at - size : at].rstrip(b"\0"))))
        return changes


def new_inotify() -> "Optional[Inotify]":
    try:
        return Inotify() if sys.platform.startswith("linux") else None
    except (ImportError, OSError, AttributeError):
        return None


def enter_own_group() -> None:
    """Leave the supervisor's process group, so that a function which ends its own group ends no supervisor.

    A child that has ended leads the group: a leader could not call setsid, as a function that daemonises does.
    """
    leader = os.fork()
    if leader == 0:
        os._exit(0)
    # Until it is waited for, its pid names a group that can be entered.
    os.setpgid(leader, leader)
    os.setpgid(0, leader)
    os.waitpid(leader, 0)


def make_group() -> int:
    """Make a process group for the workers that none of them leads: a leader could not call setsid.

    Its leader has ended, and is never collected, so the group stays. A worker that made one would fork for that.

    Returns:
        0 if this machine cannot, and each worker makes a group of its own.
    """
    number = _CLONE.get(os.uname().machine, 0)
    # With no signal for its end, the kernel does not collect it as one of the others.
    leader = libc_function("syscall")(number, 0, 0, 0, 0, 0) if number else -1
    if leader == 0:
        os._exit(0)
    if leader > 0:
        os.setpgid(leader, leader)
    return max(leader, 0)


def become_subreaper() -> bool:
    """Adopt descendants whose parents end; False where the kernel (before 3.4, or not Linux) cannot."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_without_adopting(pid: int) -> None:
    """Kill a child whose own children are to be none of this process's, even where it adopts orphans."""
    # This import is late, because few processes need a pointer.
    import ctypes

    adopts = ctypes.c_int(0)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    # This lasts for a moment only, because an orphan of the job could be lost meanwhile.
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except ChildProcessError:
        # Where SIGCHLD is ignored, the kernel collects it.
        pass
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, adopts.value)


def die_with_parent(signum: int, parent: int) -> None:
    """Be sent `signum` when the parent ends; at once if it is no longer `parent`."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def _prctl(option: int, value: int) -> bool:
    # On Linux a failure is raised: without this call, processes would be left behind without a word.
    return sys.platform.startswith("linux") and libc_function("prctl")(option, value, 0, 0, 0) == 0
