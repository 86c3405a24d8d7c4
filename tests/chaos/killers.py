"""Who kills whom in the storm: clients, agents, sshd's children, supervisors, workers, spoolers, SLURM's daemons, and
connections; each kind as often as it is told to, at moments that only the seed knows."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.chaos.onhost import parent_of
from tests.chaos.reaper import command, job_of, kind_of

Act = Callable[[random.Random], "str | None"]


class Killer:
    """Does one of its acts at a time, each as often as its quota says.

    Args:
        acts: Kind -> what kills one of that kind; it gives the job that was hit ("" if it belongs to none), or None if
            there was nobody to kill.

    Attributes:
        killed: (kind, job, when in wall seconds).
    """

    def __init__(self, acts: Mapping[str, Act], quota: int, rng: random.Random, pause_s: tuple[float, float]) -> None:
        self.killed: list[tuple[str, str, float]] = []
        self.failed: BaseException | None = None
        self._acts, self._quota, self._rng, self._pause_s = acts, quota, rng, pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill_all)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def counts(self) -> dict[str, int]:
        """How many of each kind are dead."""
        found = collections.Counter(kind for kind, _, _ in self.killed)
        return {kind: found[kind] for kind in self._acts}

    def done(self) -> bool:
        """Whether each kind has died as often as it was to."""
        return all(count >= self._quota for count in self.counts().values())

    def _kill_all(self) -> None:
        try:
            while not self.done() and not self._over.wait(self._rng.uniform(*self._pause_s)):
                wanted = [kind for kind, count in self.counts().items() if count < self._quota]
                for kind in self._rng.sample(wanted, len(wanted)):  # the first of which there is one
                    when = time.time()
                    job = self._acts[kind](self._rng)
                    if job is not None:
                        self.killed.append((kind, job, when))
                        break
        except BaseException as error:  # it is the test's, not the thread's
            self.failed = error


def of_process(kind: str, is_ours: Callable[[int, list[bytes]], bool]) -> Act:
    """Kill one process of that kind.

    Args:
        is_ours: Whether a process of this kind, with these words, belongs to the storm.
    """

    def act(rng: random.Random) -> str | None:
        there = [(pid, words) for pid in _pids() if kind_of(words := command(pid)) == kind and is_ours(pid, words)]
        # A child that has not become itself yet has its parent's words.
        there = [(pid, words) for pid, words in there if kind_of(command(parent_of(pid))) != kind]
        if not there:
            return None
        pid, words = rng.choice(there)
        if command(pid) != words:
            return None
        return job_of(words) if kill(pid) else None

    return act


def belongs_to(root: Path) -> Callable[[int, list[bytes]], bool]:
    """Whether a process runs from that root."""
    word = os.fsencode(root)
    return lambda _, words: any(word in each for each in words)


def is_of(uid: int, since_ticks: int) -> Callable[[int, list[bytes]], bool]:
    """Whether a process is an account's and was started after that moment: agents do not name their root."""

    def look(pid: int, _: list[bytes]) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            return os.stat(f"/proc/{pid}").st_uid == uid and int(stat.rpartition(")")[2].split()[19]) >= since_ticks
        except OSError:
            return False

    return look


def kill(pid: int) -> bool:
    """kill -9; whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def now_ticks() -> int:
    """Ticks since boot, as /proc has the starts of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
