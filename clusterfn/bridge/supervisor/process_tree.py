"""Every process that a job started: finds them, says what they are, ends them.

While the supervisor lives, its descendants are complete, because it adopts orphans. After its death they are found by
the tag in their environment, and on a bare host by the session that job.sh leads. Not reached then: a process that has
both a clean environment and a session of its own. Never touches another user's processes.
"""

import os
import signal
import time

from ..layout import TAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, NamedTuple, Optional

    class _Stat(NamedTuple):
        name: str
        state: str
        parent: int
        session: int

else:
    from collections import namedtuple

    _Stat = namedtuple("_Stat", "name state parent session")

PROC = "/proc"
_LIMIT_S = 10.0
_DEAD = ("Z", "X")


def descendants(pid: int) -> "list[int]":
    """All living descendants of `pid`."""
    found = _by_children(pid) if _has_children_files(pid) else _by_parents(pid)
    return [number for number in found if is_alive(number)]


def _has_children_files(pid: int) -> bool:
    return os.path.exists("%s/%d/task/%d/children" % (PROC, pid, pid))


def _by_children(pid: int) -> "list[int]":
    """Cheap on a machine with thousands of processes; the kernel needs CONFIG_PROC_CHILDREN."""
    found: "list[int]" = []
    waiting = [pid]
    while waiting:
        own = _children(waiting.pop())
        found += own
        waiting += own
    return found


def _children(pid: int) -> "list[int]":
    folder = "%s/%d/task" % (PROC, pid)
    try:
        tasks = os.listdir(folder)
    except OSError:
        return []
    return [int(number) for task in tasks for number in _read("%s/%s/children" % (folder, task)).split()]


def _by_parents(pid: int) -> "list[int]":
    children: "dict[int, list[int]]" = {}
    for number in _all():
        stat = _stat(number)
        if stat is not None:
            children.setdefault(stat.parent, []).append(number)
    found: "list[int]" = []
    waiting = [pid]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def _all() -> "list[int]":
    try:
        return [int(name) for name in os.listdir(PROC) if name.isdecimal()]
    except FileNotFoundError:  # not Linux: only the worker itself is known then
        return []


def _stat(pid: int) -> "Optional[_Stat]":
    head, _, rest = _read("%s/%d/stat" % (PROC, pid)).rpartition(")")
    fields = rest.split()
    return _Stat(head.partition("(")[2], fields[0], int(fields[1]), int(fields[3])) if fields else None


def _read(path: str) -> str:
    return _read_bytes(path).decode("utf-8", "replace")


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it ended meanwhile
        return b""


def is_alive(pid: int) -> bool:
    """Whether it exists and is not a zombie."""
    stat = _stat(pid)
    return stat is not None and stat.state not in _DEAD


def parent_of(pid: int) -> int:
    """Its parent's pid; 0 if it is gone."""
    stat = _stat(pid)
    return 0 if stat is None else stat.parent


def state_of(pid: int) -> str:
    """The kernel's letter for what it does; "?" if it is gone."""
    stat = _stat(pid)
    return "?" if stat is None else stat.state


def cpu_s(pid: int) -> float:
    """Seconds of CPU time that it used, and those of its children that it has collected."""
    fields = _read("%s/%d/stat" % (PROC, pid)).rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / float(os.sysconf("SC_CLK_TCK"))


def catches(pid: int, number: int) -> bool:
    """Whether it has a handler of its own for a signal."""
    for line in _read("%s/%d/status" % (PROC, pid)).split("\n"):
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def name_of(pid: int) -> str:
    """ "sleep (pid 123)"."""
    stat = _stat(pid)
    return "%s (pid %d)" % (stat.name if stat else "?", pid)


def tagged(job: str, attempt: int) -> "list[int]":
    """Living processes of this user whose last exec carried exactly this attempt's tag."""
    tag, uid, own = ("%s=%s/%d" % (TAG, job, attempt)).encode(), os.getuid(), os.getpid()
    return [pid for pid in _all() if pid != own and _is_tagged(pid, uid, tag) and is_alive(pid)]


def _is_tagged(pid: int, uid: int, tag: bytes) -> bool:
    folder = "%s/%d" % (PROC, pid)
    try:
        if os.stat(folder).st_uid != uid:
            return False
        with open(folder + "/environ", "rb") as file:
            return tag in file.read().split(b"\0")
    except OSError:  # it ended meanwhile, or made itself unreadable
        return False


def of_session(script: str) -> "list[int]":
    """Living processes of this user in the session that job.sh leads, but job.sh and what is between it and this one.

    Args:
        script: The path of job.sh. Where it does not lead this process's session, the session is others' as well, and
            nothing is found.
    """
    leader, uid = os.getsid(0), os.getuid()
    if os.fsencode(script) not in _read_bytes("%s/%d/cmdline" % (PROC, leader)).split(b"\0"):
        return []
    spared = set(_with_ancestors(os.getpid())) | {leader}
    return [pid for pid in _all() if pid not in spared and _is_in(pid, leader, uid)]


def in_session(leader: int) -> "list[int]":
    """Living processes of this user in the session of another process."""
    uid = os.getuid()
    return [pid for pid in _all() if _is_in(pid, leader, uid)]


def _with_ancestors(pid: int) -> "list[int]":
    found = []
    while pid > 1:
        found.append(pid)
        pid = parent_of(pid)
    return found


def _is_in(pid: int, session: int, uid: int) -> bool:
    stat = _stat(pid)
    if stat is None or stat.session != session or stat.state in _DEAD:
        return False
    try:
        return os.stat("%s/%d" % (PROC, pid)).st_uid == uid
    except OSError:  # it ended meanwhile
        return False


def end(find: "Callable[[], list[int]]", reap: "Callable[[], object]", limit_s: float = _LIMIT_S) -> "list[str]":
    """Kill what `find` finds until two looks find nothing; what is left after `limit_s` is named.

    All are stopped before any is killed, so that none can start another meanwhile.
    """
    deadline = time.monotonic() + limit_s
    empty = 0
    found = find()
    while (found or empty < 1) and time.monotonic() < deadline:
        empty = 0 if found else empty + 1
        _stop_all(found, find)
        reap()
        found = find()
        if found:
            time.sleep(0.01)
    return [name_of(pid) for pid in found]


def _stop_all(found: "list[int]", find: "Callable[[], list[int]]") -> None:
    stopped: "set[int]" = set()
    while not stopped.issuperset(found):
        _signal(set(found) - stopped, signal.SIGSTOP)
        stopped.update(found)
        found = find()
    _signal(stopped, signal.SIGKILL)


def _signal(pids: "Iterable[int]", number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # ended meanwhile, or it changed its user
            continue
