"""Limits on what the processes of a job do: how much memory they use together, for how long they do nothing or run.

Pages that processes share are counted once, but only when it matters: the cheap sum comes first. The kernel's exact
account walks page tables, so it is read only when that sum is over the limit or over the peak so far. A thread that
wakes up to look for work does not count as work. Reads /proc; `run` decides what follows.
"""

import os
import signal
import time

from ..layout import STALLED
from .process_tree import PROC, cpu_s, read_file, read_proc
from .text import format_duration, format_size
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Tuple

# A client on Windows, which has no `sysconf`, needs the clock of this module.
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_EVERY_S = 0.1
_EXACT_EVERY_S = 1.0
_MOST_OF_A_CPU = 0.02
# The first is a share of what was used at the sample before, the second one of the limit.
_CHANGE = 0.02
_NEAR = 0.7


class MemorySampler:
    """Samples the memory of the tree, by at most 2 % of a CPU's time; waiting on a busy machine is no cost.

    Attributes:
        used: Bytes at the last sample.
        peak: Most bytes seen.
        is_changing: Whether the next sample may differ much from the last, or is near to the limit.
    """

    def __init__(self, limit: "Optional[int]") -> None:
        self.used = self.peak = 0
        self.is_changing = True
        self._before = 0
        self._limit = limit
        self._next = self._next_exact = 0.0

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def over(self, pids: "list[int]", spent: float) -> bool:
        """Take a sample; True if the tree uses more than its limit. `spent`: CPU time before the pids were found."""
        used = sum(resident_bytes(pid) for pid in pids)
        limit = self._limit
        self.is_changing = abs(used - self._before) > _CHANGE * used or bool(limit and used > _NEAR * limit)
        self._before = used
        if used > self.peak or (limit and used > limit):
            used = self._exactly(pids, used)
        # The cheap sum counts shared pages more than once.
        self.used = min(used, self.peak) if self.peak else used
        self._next = time.monotonic() + max(_EVERY_S, (time.process_time() - spent) / _MOST_OF_A_CPU)
        return bool(limit and used > limit)

    def _exactly(self, pids: "list[int]", used: int) -> int:
        began = time.process_time()
        over = bool(self._limit and used > self._limit)
        if not over and (len(pids) < 2 or time.monotonic() < self._next_exact):
            self.peak = max(self.peak, used if len(pids) < 2 else 0)
            return used
        exact = sum(proportional(pid) for pid in pids)
        # A process that ends between two readings leaves its share to the later ones.
        if self._limit and exact > self._limit:
            exact = min(exact, sum(proportional(pid) for pid in pids))
        cost = time.process_time() - began
        self._next_exact = time.monotonic() + max(_EXACT_EVERY_S, cost / _MOST_OF_A_CPU)
        self.peak = max(self.peak, exact)
        return exact


def resident_bytes(pid: int) -> int:
    fields = read_proc(pid, "statm").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def proportional(pid: int) -> int:
    """Bytes of one process without file pages, shared ones divided among their users; resident bytes on old kernels."""
    text = read_proc(pid, "smaps_rollup").decode("ascii", "replace")
    values = {line.split(":")[0]: line.split()[1] for line in text.split("\n") if line.endswith("kB")}
    if "Pss_Anon" in values:
        return (int(values["Pss_Anon"]) + int(values.get("Pss_Shmem", 0))) * 1024
    return int(values["Pss"]) * 1024 if "Pss" in values else resident_bytes(pid)


class OomDetector:
    """The kernel's out-of-memory killer: has it been at work on this job since the start?"""

    def __init__(self) -> None:
        self._groups = _memory_groups()
        self._before = {path: _oom_kills(path) for path in self._groups}
        self._machine = [_oom_kills(PROC + "/vmstat")]
        self._next = 0.0

    def look(self) -> None:
        """Remember the machine's count, so that only a kill of the last seconds is believed to be ours."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1.0
            self._machine = (self._machine + [_oom_kills(PROC + "/vmstat")])[-2:]

    def seen(self) -> "Optional[str]":
        for path, before in self._before.items():
            if _oom_kills(path) > before:
                return "the kernel counted an out-of-memory kill in the job's memory group (%s)" % path
        if _oom_kills(PROC + "/vmstat") > self._machine[0]:
            return "the machine ran out of memory: the kernel's out-of-memory killer was at work in that second"
        return None


def _memory_groups() -> "list[str]":
    """Files that count out-of-memory kills in this process's own memory group, version 1 or 2."""
    found = []
    for line in read_proc("self/cgroup").decode("ascii", "replace").split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            found.append("/sys/fs/cgroup/memory%s/memory.oom_control" % path)
        elif not controllers and path:
            found.append("/sys/fs/cgroup%s/memory.events" % path)
    return [path for path in found if os.path.exists(path)]


def _oom_kills(path: str) -> int:
    _, _, rest = (b"\n" + read_file(path)).partition(b"\noom_kill ")
    return int(rest.split(b"\n")[0] or 0)


# A machine with too much to do may wake a process as late as that.
_BUSY_S = 2.0


class JobClock:
    """The clock by which a job's own time is measured: it stands still while the whole job is stopped.

    A scheduler suspends a job by stopping all its processes, this one among them, and its limits do not count that
    time. No call says for how long a process was stopped: it sees afterwards that a wait took longer than it may.
    Each loop that waits reports that here. While a machine sleeps, the kernel's monotonic clock does not run.

    Attributes:
        stopped_s: For how long this process and its children were stopped so far.
        looked: What it showed at the last look for a stop. One since then is not known yet, so a time limit counts
            only what came before.
    """

    def __init__(self) -> None:
        self.stopped_s = self.looked = 0.0

    def now(self) -> float:
        """Return the seconds for which this process could run, from an arbitrary point on."""
        return time.monotonic() - self.stopped_s

    def overrun(self, began: float, limit_s: float) -> float:
        """Return by how much a wait took longer than it may; 0.0 if a busy machine explains that.

        Args:
            began: By `time.monotonic`.
        """
        over_s = time.monotonic() - began - limit_s
        return over_s if over_s > _BUSY_S else 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep, and do not count what that took longer."""
        began = time.monotonic()
        time.sleep(seconds)
        self.stopped_s += self.overrun(began, seconds)


# This process has one clock.
clock = JobClock()

# It counts from the announcement. SLURM's `suspend_grace_time` is 2 s where a site does not change it.
_STOPS_WITHIN_S = 60.0
_SUSPENDED = "the scheduler has suspended the job; this time does not count"


class Suspension:
    """Leaves out the time for which a scheduler has stopped all of a job, and tells of that.

    A stop by signals ends with SIGCONT. Without one, the kernel has frozen the job's control group. Signals count only
    where a scheduler may have sent them: it has a time limit of its own. Elsewhere the function could send them, and
    run for ever.

    Args:
        came: The signals that have come to this process, and when; those that mean a stop are taken from it.
        by_scheduler: Whether a scheduler may have sent them.
        tell: Adds an event to the attempt.
    """

    def __init__(self, came: "dict[int, float]", by_scheduler: bool, tell: "Callable[..., None]") -> None:
        self._came, self._by_scheduler, self._tell = came, by_scheduler, tell
        # This is when a wait ended last.
        self._alive = time.monotonic()
        # This is when the scheduler announced that it stops the job.
        self._announced: "Optional[float]" = None
        self._stopped_s = 0.0

    def begin(self) -> None:
        self._alive = time.monotonic()
        clock.looked = clock.now()

    def look(self, began: float, limit_s: float, worker: int) -> None:
        """Look whether all of the job was stopped during a wait.

        Args:
            began: When the wait began, by `time.monotonic`.
            limit_s: For how long it may have waited.
            worker: The pid of the worker; 0 without one.
        """
        continued = self._came.pop(signal.SIGCONT, None)
        late = clock.overrun(began, limit_s) if continued is None else clock.overrun(self._alive, 0.0)
        self._alive = time.monotonic()
        # SLURM sends SIGTSTP two seconds before it stops the job.
        if self._came.pop(signal.SIGTSTP, None) is not None and self._by_scheduler:
            self._announced = self._alive
            self._tell("suspended", reason=_SUSPENDED)
        stops = self._by_scheduler and (self._announced is not None or _was_stopped(worker))
        if late and (continued is None or stops):
            clock.stopped_s += late
            self._stopped_s += late
            self._announced = None
            self._tell("resumed", reason="it was suspended for %s" % format_duration(late), stopped_s=round(late, 3))
        elif self._announced is not None and self._alive > self._announced + _STOPS_WITHIN_S:
            self._announced = None
            self._tell("resumed", reason="", stopped_s=0.0)
        clock.looked = self._alive - clock.stopped_s

    def notes(self) -> "list[str]":
        """Return what the outcome says of it."""
        note = "it was suspended for %s, which its time limit does not count" % format_duration(self._stopped_s)
        return [note] if self._stopped_s else []


def _was_stopped(worker: int) -> bool:
    """Whether the worker was stopped as well, and not the supervisor alone, which watches its time."""
    if not worker:
        return True
    try:
        changed = os.waitid(os.P_PID, worker, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
    except ChildProcessError:
        # The worker has ended.
        return True
    return changed is not None


# It is a share of one CPU over the whole time.
_IDLE = 0.005
_STALL_EVERY_S = 1.0


class Stall:
    """Counts for how long a job has done nothing; a machine that slept meanwhile does not count.

    Args:
        limit_s: For how long it may; None: nothing is looked at.
    """

    def __init__(self, limit_s: "Optional[float]") -> None:
        self._limit_s = limit_s
        self._every_s = min(_STALL_EVERY_S, (limit_s or 0.0) / 10)
        self._looked: "Optional[float]" = None
        self._quiet_s = 0.0
        # These are the CPU seconds and the bytes of output when it last did something.
        self._last: "Tuple[float, int]" = (0.0, 0)

    def note(self) -> "list[str]":
        """Return a note if idleness cannot be measured on this machine."""
        missing = self._limit_s is not None and not os.path.exists(PROC)
        return ["stall_timeout was not watched: this machine has no %s" % PROC] if missing else []

    def over(self, pids: "list[int]", collected_s: float, printed: int) -> bool:
        """Whether it has done nothing for too long; looks, if it is time to.

        Args:
            collected_s: CPU seconds of those that have ended and were collected.
            printed: Bytes of output so far.
        """
        now = clock.now()
        if self._limit_s is None or (self._looked is not None and now < self._looked + self._every_s):
            return False
        passed = 0.0 if self._looked is None else min(now - self._looked, 10 * self._every_s)
        self._looked = now
        used = collected_s + sum(map(cpu_s, pids))
        if not pids or printed != self._last[1] or abs(used - self._last[0]) > _IDLE * self._limit_s:
            self._last = (used, printed)
            self._quiet_s = 0.0
        else:
            self._quiet_s += passed
        return self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it had done nothing for too long at the last look."""
        return self._limit_s is not None and self._quiet_s >= self._limit_s

    def in_words(self) -> str:
        return "printed nothing and used no CPU for %s" % format_duration(self._limit_s or 0.0)

    def verdict(self, stacks: "list[str]") -> Verdict:
        limit_s = self._limit_s or 0.0
        message = "the job printed nothing and used no CPU time for %s" % format_duration(limit_s)
        longer = "%dmin" % max(2, round(limit_s / 30.0))
        hint = "look where its threads wait; if that is right, print now and then, or give it stall_timeout=%r" % longer
        return Verdict(STALLED, message, evidence=stacks or None, hint=hint)


# The kernel does not count CPU time as `wait` does.
_KERNELS_TICK_S = 0.5


def kernel_limits(memory_bytes: "Optional[int]") -> "list[str]":
    """Say which limits of the kernel's (`ulimit`) leave a process less memory than the job asked for."""
    # This import is late, because Windows has no such module.
    import resource

    found = []
    for limit, what, name in (
        (resource.RLIMIT_AS, "address space", "RLIMIT_AS, `ulimit -v`"),
        (resource.RLIMIT_DATA, "data", "RLIMIT_DATA, `ulimit -d`"),
    ):
        soft = resource.getrlimit(limit)[0]
        if memory_bytes and 0 <= soft < memory_bytes:
            found.append(
                "a process may have only %s of %s on this machine (%s), less than memory= asks for: %s"
                % (format_size(soft), what, name, format_size(memory_bytes))
            )
    return found


def describe_kernel_limit(status: int, used: "Any") -> str:
    """Name the limit of the kernel's that ended a process; "" if none did.

    Args:
        status: As `wait` gives it.
        used: What the process has used, as `wait4` gives it; None if that is not known.
    """
    if not os.WIFSIGNALED(status):
        return ""
    import resource

    number = os.WTERMSIG(status)
    # The kernel sends SIGKILL to a process that reaches the hard limit of CPU time.
    cpu_s = 0.0 if used is None else used.ru_utime + used.ru_stime
    of_signals: "dict[int, tuple[int, str, str, Any]]" = {
        signal.SIGXCPU: (resource.RLIMIT_CPU, "CPU time", "RLIMIT_CPU, `ulimit -t`", format_duration),
        signal.SIGXFSZ: (resource.RLIMIT_FSIZE, "the size of a file", "RLIMIT_FSIZE, `ulimit -f`", format_size),
    }
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if number == signal.SIGKILL and 0 <= hard <= cpu_s + _KERNELS_TICK_S:
        number = signal.SIGXCPU
    if number not in of_signals:
        return ""
    limit, what, name, shown = of_signals[number]
    soft = resource.getrlimit(limit)[0]
    value = "which it has set itself" if soft < 0 else shown(soft)
    return "the limit of one process on %s, %s (%s)" % (what, value, name)
