"""Processes by /proc: what one is, every process that a job started, and how to end them all.

While the supervisor lives, its descendants are complete, because it adopts orphans. After its death they are found by
the tag in their environment, and on a bare host by the session that job.sh leads. Not reached then: a process that has
both a clean environment and a session of its own. Never touches another user's processes.
"""

import contextlib
import os
import signal
import time

from ..layout import TAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Container, Iterable, Iterator, Optional

    from .worker_process import WorkerProcess, WorkerSource

PROC = "/proc"
_LIMIT_S = 10.0
_PIECE = 1 << 16
_DEAD = ("Z", "X")
# /proc shows this letter after SIGSTOP.
STOPPED = "T"


def read_proc(*names: "object") -> bytes:
    """A file below /proc; empty if it does not exist, as for a process that has ended."""
    return read_file("/".join([PROC] + [str(name) for name in names]))


def read_file(path: str) -> bytes:
    """Return what is in a small file; nothing if it cannot be read."""
    # A file object would take ten system calls more, and some are read at each look at a job.
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    pieces = []
    try:
        piece = os.read(fd, _PIECE)
        while piece:
            pieces.append(piece)
            piece = os.read(fd, _PIECE)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(fd)


def boot_id() -> str:
    """Return an id that changes with each start of the machine."""
    return read_proc("sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def _stat(pid: int) -> "list[str]":
    """Return the fields of a process from its state on; empty if it is gone."""
    return read_proc(pid, "stat").decode("utf-8", "replace").rpartition(")")[2].split()


def start_time(pid: int) -> str:
    """When a process started, in ticks since boot: with its pid it names it for ever. Empty if it is gone."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def is_alive(pid: int) -> bool:
    """Whether it exists and is not a zombie."""
    return _lives(_stat(pid))


def script_runs(started: str) -> bool:
    """Whether the job.sh that has written the file `started` still runs on this machine."""
    try:
        with open(started, encoding="utf-8", errors="replace") as file:
            boot, _, stat = file.read().partition(" ")
        pid, start = int(stat.partition(" ")[0]), stat.rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return False
    return boot == boot_id() and is_alive(pid) and start_time(pid) == start


# What a process is of a job, in the file of those that /proc does not name.
SUPERVISOR, KEEPER = "supervisor", "keeper"


def note_process(path: str, what: str, pid: int) -> None:
    """Add to this file what this process is of the job: /proc shows a fork with the words of another."""
    # The disk is full, or the function has removed the folder.
    with contextlib.suppress(OSError), open(path, "a") as file:
        file.write("%s %s %d %s\n" % (what, boot_id(), pid, start_time(pid)))


def noted_process(path: str, what: str) -> int:
    """Return the pid of the last one that is noted as this, even if it has ended; 0 if its number is another's."""
    boot, pid, start = "", 0, ""
    for line in read_file(path).decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) == 4 and words[0] == what and words[2].isdecimal():
            boot, pid, start = words[1], int(words[2]), words[3]
    return pid if pid and boot == boot_id() and start_time(pid) in ("", start) else 0


def of_keeper(path: str) -> "list[int]":
    """Return the living descendants of the keeper that is noted in this file, and those in its session, but not itself.

    It ends by itself, after its supervisor.
    """
    keeper = noted_process(path, KEEPER)
    if not keeper:
        return []
    return sorted({*descendants(keeper), *in_session(keeper)} - {keeper})


def is_hidden(pid: int) -> bool:
    """Whether it exists, though /proc does not show it: with hidepid=2, all of other users are hidden."""
    if os.path.exists("%s/%d" % (PROC, pid)):
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _lives(fields: "list[str]") -> bool:
    """Whether these fields are of a process with a living thread.

    A process whose first thread has ended is a zombie at once, but one that can be collected, and has given its memory
    and its GPUs back, only when its last thread has ended too.
    """
    return bool(fields) and (fields[0] not in _DEAD or int(fields[17]) > 1)


def parent_of(pid: int) -> int:
    """Return its parent's pid; 0 if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def session_of(pid: int) -> int:
    """Return the leader of its session; 0 if it is gone."""
    fields = _stat(pid)
    return int(fields[3]) if fields else 0


def state_of(pid: int) -> str:
    """Return the kernel's letter for its state; "?" if it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else "?"


def _status(pid: int, name: bytes) -> bytes:
    """Return a number of its status, as the kernel writes it; 0 if it is gone."""
    for line in read_proc(pid, "status").split(b"\n"):
        if line.startswith(name + b":"):
            return line.split()[1]
    return b"0"


def peak_of(pid: int) -> int:
    """Return the most bytes that a living process ever had resident."""
    return int(_status(pid, b"VmHWM")) * 1024


def cpu_s(pid: int) -> float:
    """Seconds of CPU time that it used, and those of its children that it has collected."""
    return sum(map(int, _stat(pid)[11:15])) / float(os.sysconf("SC_CLK_TCK"))


def catches(pid: int, number: int) -> bool:
    """Whether it has a handler of its own for a signal."""
    return bool(int(_status(pid, b"SigCgt"), 16) >> (number - 1) & 1)


def ignores(pid: int, number: int) -> bool:
    """Whether a signal does nothing to it."""
    return bool(int(_status(pid, b"SigIgn"), 16) >> (number - 1) & 1)


def pipe_of(pid: int, fd: int) -> str:
    """Return the name of the pipe that it has open there; "" if it has none."""
    try:
        name = os.readlink("%s/%d/fd/%d" % (PROC, pid, fd))
    except OSError:
        return ""
    return name if name.startswith("pipe:") else ""


def name_of(pid: int) -> str:
    """ "sleep (pid 123)"."""
    head, _, rest = read_proc(pid, "stat").decode("utf-8", "replace").rpartition(")")
    return "%s (pid %d)" % (head.partition("(")[2] if rest else "?", pid)


def command_line(pid: int) -> "list[bytes]":
    """Return the words by which it was started; none if it is gone."""
    return read_proc(pid, "cmdline").split(b"\0")[:-1]


def environment_of(pid: int) -> "Optional[dict[str, str]]":
    """Return the variables with which it was started; None if they cannot be read."""
    try:
        with open("%s/%d/environ" % (PROC, pid), "rb") as file:
            pairs = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0") if entry]
    except OSError:
        return None
    return {name: value for name, _, value in pairs}


def children_of(pid: int) -> "list[int]":
    """Return the children of `pid` that the kernel lists; none without CONFIG_PROC_CHILDREN."""
    try:
        threads = os.listdir("%s/%d/task" % (PROC, pid))
    except OSError:
        return []
    lists = [read_proc(pid, "task", int(thread), "children").split() for thread in threads]
    return [int(child) for numbers in lists for child in numbers]


def descendants(pid: int, but: "Container[int]" = ()) -> "list[int]":
    """Return all living descendants of `pid`, without these and theirs."""
    find = children_of
    # The kernel lists no children, and looking at all processes costs more.
    if not os.path.exists("%s/%d/task/%d/children" % (PROC, pid, pid)):
        children = {}  # type: dict[int, list[int]]
        for number in _all():
            children.setdefault(parent_of(number), []).append(number)

        def find(pid: int) -> "list[int]":
            return children.get(pid, [])

    found = []  # type: list[int]
    waiting = [pid]
    while waiting:
        own = [child for child in find(waiting.pop()) if child not in but]
        found += own
        waiting += own
    return [number for number in found if is_alive(number)]


# These children of this process do not belong to the job, such as those that ask nvidia-smi.
apart: "set[int]" = set()


def of_job(but: "Iterable[int]" = ()) -> "list[int]":
    """Return all living descendants of this process that are the job's, without these and theirs."""
    return descendants(os.getpid(), apart.union(but))


def collected() -> "Iterator[tuple[int, int, Any]]":
    """Collect the children of this process that have ended; yield pid, status and usage of the job's own."""
    while True:
        try:
            ended = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended[0] == 0:
            return
        if ended[0] in apart:
            apart.remove(ended[0])
        else:
            yield ended


def _all() -> "list[int]":
    try:
        return [int(name) for name in os.listdir(PROC) if name.isdecimal()]
    except FileNotFoundError:
        # There is no /proc, and only the worker itself is known.
        return []


def tagged(job: str, attempt: int) -> "list[int]":
    """Living processes of this user whose last exec carried exactly this attempt's tag."""
    return carrying("%s=%s/%d" % (TAG, job, attempt))


def carrying(variable: str) -> "list[int]":
    """Living processes of this user whose last exec carried exactly this variable, "NAME=value"."""
    entry = variable.encode()
    return [pid for pid in of_user() if entry in read_proc(pid, "environ").split(b"\0") and is_alive(pid)]


def user_name(uid: int) -> str:
    """Return the name of a user, or the number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def of_user() -> "list[int]":
    """Return this user's processes, but not this one."""
    uid, own = os.getuid(), os.getpid()
    return [pid for pid in _all() if pid != own and _is_of_user(pid, uid)]


def _is_of_user(pid: int, uid: int) -> bool:
    try:
        return os.stat("%s/%d" % (PROC, pid)).st_uid == uid
    except OSError:
        # The process ended meanwhile.
        return False


def of_command(script: str, *words: str) -> "list[int]":
    """Return this user's processes that run a script of this name with these words first."""
    wanted = [os.fsencode(word) for word in words]

    def runs_it(pid: int) -> bool:
        said = command_line(pid)
        places = [place for place, word in enumerate(said) if os.path.basename(word) == os.fsencode(script)]
        return bool(places) and said[places[0] + 1 :][: len(wanted)] == wanted

    return [pid for pid in of_user() if runs_it(pid)]


def of_session(script: str) -> "list[int]":
    """Living processes of this user in the session that job.sh leads, but job.sh and what is between it and this one.

    Args:
        script: The path of job.sh. Where it does not lead this process's session, the session is others' as well, and
            nothing is found.
    """
    leader, uid = os.getsid(0), os.getuid()
    if os.fsencode(script) not in command_line(leader):
        return []
    spared = {leader}
    pid = os.getpid()
    while pid > 1:
        spared.add(pid)
        pid = parent_of(pid)
    return [pid for pid in _all() if pid not in spared and _is_in(pid, leader, uid)]


def in_session(leader: int) -> "list[int]":
    """Return living processes of this user in the session of another process."""
    uid = os.getuid()
    return [pid for pid in _all() if _is_in(pid, leader, uid)]


def _is_in(pid: int, session: int, uid: int) -> bool:
    fields = _stat(pid)
    return _lives(fields) and int(fields[3]) == session and _is_of_user(pid, uid)


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


def end_all_but(spared: "Callable[[], Iterable[int]]") -> None:
    """Kill and collect all descendants of this process that are not in `spared()`."""
    killed = set()  # type: set[int]

    def others() -> "list[int]":
        # This list comes first, so that it lacks what the spared processes start meanwhile.
        everyone = descendants(os.getpid())
        own = set(spared())
        living = [pid for pid in everyone if pid not in own]
        killed.update(living)
        return living

    def reap() -> None:
        for pid in killed:
            # It is the child of another process, or collected already.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    end(others, reap)
    reap()


def _stop_all(found: "list[int]", find: "Callable[[], list[int]]") -> None:
    stopped: "set[int]" = set()
    while not stopped.issuperset(found):
        send_signal(set(found) - stopped, signal.SIGSTOP)
        stopped.update(found)
        found = find()
    send_signal(stopped, signal.SIGKILL)


def send_signal(pids: "Iterable[int]", number: int) -> None:
    """Send a signal to each of these processes that is still there, and is this user's."""
    for pid in pids:
        # The process ended meanwhile, or it changed its user.
        with contextlib.suppress(OSError):
            os.kill(pid, number)


class RunProcesses:
    """The processes of one attempt: its worker, and all that descend from this process or from its keeper.

    Attributes:
        worker: None before it is started.
        status: With what the worker ended; None while it lives.
        ended: What the worker's own process used, once it has ended.
        cpu_s: What those used that have ended.
        reported_peak: The most memory that the worker says that it has had; 0 if it says none.
        spared: Returns processes that are none of the attempt's, nor is what they have started.

    Args:
        source: Where the worker comes from.
    """

    def __init__(self, source: "WorkerSource") -> None:
        self._source = source
        self.worker: "Optional[WorkerProcess]" = None
        self.status: "Optional[int]" = None
        self.ended: "Optional[Any]" = None
        self.cpu_s = 0.0
        self.reported_peak = 0
        self.spared: "Callable[[], Iterable[int]]" = tuple

    def all(self) -> "list[int]":
        """Return those that live, as far as they descend from this process or from its keeper."""
        return of_job(self.spared()) + [pid for root in self._source.roots() for pid in descendants(root)]

    def _living(self) -> "list[int]":
        found = self.all()
        if self.worker is not None and self.status is None and self.worker.pid not in found:
            found.append(self.worker.pid)
        return found

    def reap(self) -> None:
        """Collect the worker, and orphans that became children of this process or of its keeper."""
        for pid, status, usage in [*collected(), *self._source.collected()]:
            self.cpu_s += usage.ru_utime + usage.ru_stime
            if self.worker is not None and pid == self.worker.pid:
                self.status, self.ended = status, usage

    def end(self) -> "list[str]":
        """Kill and collect them all; return the names of those that could not be killed."""
        left = end(self._living, self.reap)
        self.reap()
        return left

    def peak(self) -> int:
        """Return the most memory that the worker's own process has had."""
        if self.ended is not None:
            return int(self.ended.ru_maxrss) * 1024
        return self.reported_peak or peak_of(self.worker.pid if self.worker else 0)

    def independent(self) -> "list[str]":
        """Name those that have made themselves independent of the worker."""
        own = (os.getpid(), *self._source.roots())
        worker = self.worker.pid if self.worker else 0
        return [name_of(pid) for pid in self.all() if pid != worker and parent_of(pid) in own]
