"""Who kills whom in the storm: clients, agents, sshd's children, supervisors, workers, spoolers, SLURM's daemons, and
connections; each kind as often as it is told to, at moments that only the seed knows."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import re
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from tests.chaos.onhost import session_of
from tests.chaos.reaper import job_of, kind_of, words_of
from tests.lab import layout
from tests.lab.handle import SlurmControls
from tests.lab.network import DelayProxy
from tests.processes import everyone
from tests.waiting import Beside

Act = Callable[[random.Random], "str | None"]


class Killer(Beside):
    """Does one of its acts at a time, each as often as its quota says.

    Args:
        acts: Kind -> what kills one of that kind; it gives the job that was hit ("" if it belongs to none), or None if
            there was nobody to kill.

    Attributes:
        killed: (kind, job, when in wall seconds).
    """

    def __init__(self, acts: Mapping[str, Act], quota: int, rng: random.Random, pause_s: tuple[float, float]) -> None:
        self.killed: list[tuple[str, str, float]] = []
        self.failed: str | None = None
        self._acts, self._quota, self._rng, self._pause_s = acts, quota, rng, pause_s
        super().__init__()

    def counts(self) -> dict[str, int]:
        """How many of each kind are dead."""
        found = collections.Counter(kind for kind, _, _ in self.killed)
        return {kind: found[kind] for kind in self._acts}

    def done(self) -> bool:
        """Whether each kind has died as often as it was to, or none will die any more."""
        return self.failed is not None or all(count >= self._quota for count in self.counts().values())

    def work(self) -> None:
        try:
            while not self.done() and not self.over.wait(self._rng.uniform(*self._pause_s)):
                wanted = [kind for kind, count in self.counts().items() if count < self._quota]
                for kind in self._rng.sample(wanted, len(wanted)):  # the first of which there is one
                    when = time.time()
                    job = self._acts[kind](self._rng)
                    if job is not None:
                        self.killed.append((kind, job, when))
                        break
        except BaseException:  # it is the test's, not the thread's
            self.failed = traceback.format_exc()


def of_process(kind: str, is_ours: Callable[[int, list[bytes]], bool]) -> Act:
    """Kill one process of that kind.

    Args:
        is_ours: Whether a process of this kind, with these words, belongs to the storm.
    """

    def act(rng: random.Random) -> str | None:
        there = [(pid, words) for pid in everyone() if kind_of(words := words_of(pid)) == kind and is_ours(pid, words)]
        if not there:
            return None
        pid, words = rng.choice(there)
        if words_of(pid) != words:
            return None
        return job_of(words) if kill(pid) else None

    return act


def belongs_to(root: Path) -> Callable[[int, list[bytes]], bool]:
    """Whether a process runs from that root."""
    word = os.fsencode(root)
    return lambda _, words: any(word in each for each in words)


class Agents:
    """Those that serve the storm's clients, and no others: the sessions of sshd whose connections the proxies hold."""

    def __init__(self, proxies: Collection[DelayProxy]) -> None:
        self._proxies = proxies
        self._known: dict[int, str] = {}

    def is_ours(self, pid: int, _: list[bytes]) -> bool:
        """Whether an agent serves one of the storm's clients."""
        if not set(session_of(pid)) & self._sessions():
            return False
        self._known[pid] = _started(pid)
        return True

    def serving(self) -> list[int]:
        """Those that serve a client now."""
        return [pid for pid in everyone() if kind_of(words_of(pid)) == "agent" and self.is_ours(pid, [])]

    def living(self) -> list[str]:
        """All that were seen and have not ended, in words."""
        self.serving()
        return [f"{pid} agent" for pid, started in self._known.items() if started and _started(pid) == started]

    def _sessions(self) -> set[int]:
        """sshd's processes at the other end of the proxies' connections."""
        ports = set().union(*(proxy.far_ports() for proxy in self._proxies))
        argv = ["ss", "-tnpH", "state", "established"]
        found = set()
        for line in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines():
            words = line.split()
            if int(words[3].rpartition(":")[2]) in ports:
                found.update(map(int, re.findall(r"pid=(\d+)", line)))
        return found


def _started(pid: int) -> str:
    """When it was started; empty if it is gone, or a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] == "Z" else words[19]


def kill(pid: int) -> bool:
    """kill -9; whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


class Administrator(Beside):
    """Puts SLURM's nodes back to work that are drained after a kill, and releases jobs that it holds: no user may.

    A daemon that is killed while it starts a job leaves "Duplicate jobid" on its node, and the job "requeued held".
    """

    def __init__(self, slurm: SlurmControls, every_s: float = 2.0) -> None:
        self._slurm, self._every_s = slurm, every_s
        super().__init__()

    def work(self) -> None:
        while not self.over.wait(self._every_s):
            for node in layout.NODES:
                if "drain" in self._slurm.node_state(node):
                    self._slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
            held = self._slurm.run("squeue", "-h", "-t", "PD", "-o", "%i|%r").stdout.splitlines()
            for number, _, reason in (line.partition("|") for line in held):
                if reason.endswith("requeued held"):
                    self._slurm.run("scontrol", "release", number)
