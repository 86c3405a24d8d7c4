"""kill -9 of whoever works on a test's own box: only there, so that nobody else's processes can be met.

Every process in the box's network namespace is the test's.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import re
import signal
from collections.abc import Mapping

from tests.lab import OwnBox
from tests.processes import command_line, parent_of
from tests.waiting import Beside

KINDS = ("supervisor", "worker", "agent", "spooler")
_JOB = re.compile(rb"/jobs/([0-9a-f]{16})(?:/elements/([0-9]+))?")


def kind_of(words: list[bytes]) -> str:
    """What a process is by its command line; empty if it is none of KINDS."""
    if words[1:2] == [b"-E"] and any(b"os.read(0, 1)" in word for word in words):
        return "agent"
    if any(word.endswith(b"/worker.py") for word in words):
        return "" if b"template" in words else "worker"
    after = words[
        1 + next((place for place, word in enumerate(words) if word.endswith(b"/supervise.py")), len(words)) :
    ]
    return {b"run": "supervisor", b"spool": "spooler"}.get(after[0] if after else b"", "")


def words_of(pid: int) -> list[bytes]:
    """Its command line, and what stands for that of a supervisor or worker that is a fork; else nothing of a fork."""
    words, depth, above = command_line(pid), 0, parent_of(pid)
    while above > 1 and command_line(above) == words:
        depth, above = depth + 1, parent_of(above)
    if depth != 2:
        return [] if depth else words
    folder = b""
    with contextlib.suppress(OSError):
        folder = os.readlink(b"/proc/%d/cwd" % pid)
    if kind_of(words) == "agent":  # agent, the process in the place of job.sh, supervisor
        return [b"/supervise.py", b"run", folder]
    # template, keeper, worker
    return [b"/worker.py", folder] if b"template" in words else []


def job_of(words: list[bytes]) -> str:
    """The job that a process belongs to, of an element with its number; empty if it is nobody's."""
    found = next((match for word in words if (match := _JOB.search(word))), None)
    return "" if found is None else b".".join(part for part in found.groups() if part).decode()


def staff(box: OwnBox) -> dict[str, list[int]]:
    """Kind -> processes on the box."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    for pid in box.cable.pids():
        found[kind_of(words_of(pid))].append(pid)
    return found


class Reaper(Beside):
    """Kills at random, so many of each kind; `killed` has their jobs by kind, "" for an agent."""

    def __init__(self, box: OwnBox, rng: random.Random, quota: Mapping[str, int], pause_s: tuple[float, float]) -> None:
        self.killed: dict[str, list[str]] = {kind: [] for kind in quota}
        self._box = box
        self._rng = rng
        self._quota = dict(quota)
        self._pause_s = pause_s
        super().__init__()

    def done(self) -> bool:
        """Whether everybody is dead who was to die."""
        return all(len(self.killed[kind]) >= count for kind, count in self._quota.items())

    def work(self) -> None:
        while not self.done() and not self.over.wait(self._rng.uniform(*self._pause_s)):
            there = staff(self._box)
            wanted = [kind for kind, count in self._quota.items() if len(self.killed[kind]) < count and there.get(kind)]
            if wanted:
                kind = self._rng.choice(wanted)
                self._kill(kind, self._rng.choice(there[kind]))

    def _kill(self, kind: str, pid: int) -> None:
        words = words_of(pid)
        if kind_of(words) != kind:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed[kind].append(job_of(words))
