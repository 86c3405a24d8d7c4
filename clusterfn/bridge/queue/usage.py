"""How much of the machine one user has used in the last hours: who has used the least comes next.

Each user's own journal says it (`tickets`), and the names of their waiting jobs publish it, so all who look see the
same order. What was used counts half after `HALF_LIFE_S`, and nothing after `AWAY_S` without a job. The unit is the
time for which one job would have had all GPUs of the machine, or all of its cores.
"""

import json
import math
import os

from ..layout import HOLDS
from . import machine, tickets
from .machine import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Optional

    from .machine import Demand

HALF_LIFE_S = 2 * 3600.0
# A user without a job for this long starts from zero. Else eight hours of all GPUs would count ten minutes more.
AWAY_S = 6 * 3600.0
# A job counts from its start for as long as its user's last jobs took, for a minute at most. So users get GPUs in turn
# though many become free at once. The newest job counts for a part of that time.
_MOST_S, _OF_NEWEST = 60.0, 0.2
# A job may begin just after the running jobs were listed, so a new one is not yet taken for dead.
_BEGINS_S = 5.0
# The end of the journal, which holds some thousand jobs.
_OF_THE_JOURNAL = 1 << 20
# What is published is put right when it is wrong by this part of it, and by this many milliseconds.
_WRONG_BY, _WRONG_BY_MS = 0.02, 200


class UsageAccount:
    """What the jobs below one root have used.

    Args:
        root: Of the jobs.

    Attributes:
        expected_s: How long the next job takes, as the last ones did.
    """

    def __init__(self, root: str) -> None:
        self.expected_s = _MOST_S
        self._ended = 0
        self._path = os.path.join(machine.folder(root), HOLDS)
        # The inode of the journal, and how much of it has been read.
        self._read = (0, 0)
        # GPU seconds and core seconds, as they count at the time `_at`.
        self._used = (0.0, 0.0)
        self._at = 0.0
        self._open: "dict[str, tuple[float, int, int]]" = {}
        self._looked = 0.0

    def look(self, running: "Mapping[str, Demand]", now: float) -> "tuple[float, float]":
        """Return the GPU seconds and core seconds that count now.

        Args:
            running: What the jobs of this user have that run, by id; some may be below another root.
            now: The time of the wall clock, as in the journal.
        """
        for line in self._new_lines():
            self._take_in(line)
        for job in set(self._open) - set(running):
            # The job was killed together with its supervisor, which would have recorded the release.
            if self._open[job][0] < now - _BEGINS_S:
                self._close(job, self._looked)
        self._looked = now
        self._restart_if_away(now)
        gpus, cores = (each * _left_of(now - self._at) for each in self._used)
        for job, asked in running.items():
            since = self._open[job][0] if job in self._open else now
            counts = max(self.expected_s, _seconds_that_count(since, now, now))
            gpus, cores = gpus + asked.gpus * counts, cores + asked.cores * counts
        return gpus, cores

    def _new_lines(self) -> "Iterable[bytes]":
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                inode, start = self._read
                if inode != status.st_ino or start > status.st_size:
                    start = max(0, status.st_size - _OF_THE_JOURNAL)
                file.seek(start)
                lines = file.read(_OF_THE_JOURNAL).split(b"\n")
        except OSError:
            # There is no journal, because no job was ever admitted on this machine.
            return []
        self._read = status.st_ino, start + sum(len(line) + 1 for line in lines[:-1])
        return lines[:-1]

    def _take_in(self, line: bytes) -> None:
        if b'"taken"' not in line and b'"released"' not in line:
            return
        try:
            entry: "dict[str, Any]" = json.loads(line.decode())
            event, job, when = entry["event"], entry["job"], float(entry["t"])
            if event == tickets.TAKEN:
                self._close(job, when)
                self._restart_if_away(when)
                self._open[job] = when, int(entry["asked"]["gpus"]), int(entry["asked"]["cores"])
            elif event == tickets.RELEASED:
                self._learn(job, when)
                self._close(job, when)
        except (ValueError, KeyError, TypeError):
            # The line is cut off at the beginning of what was read, or an older bridge wrote it.
            return

    def _restart_if_away(self, now: float) -> None:
        if not self._open and now - self._at > AWAY_S:
            self._used = (0.0, 0.0)

    def _learn(self, job: str, until: float) -> None:
        if job in self._open and until > self._open[job][0]:
            self._ended += 1
            took = min(until - self._open[job][0], _MOST_S)
            self.expected_s += max(_OF_NEWEST, 1.0 / self._ended) * (took - self.expected_s)

    def _close(self, job: str, until: float) -> None:
        if job not in self._open:
            return
        since, gpus, cores = self._open.pop(job)
        self._at, share = max(self._at, until), _left_of(max(0.0, until - self._at))
        counts = _seconds_that_count(since, until, self._at)
        self._used = self._used[0] * share + gpus * counts, self._used[1] * share + cores * counts


def _left_of(seconds: float) -> float:
    return float(0.5 ** (max(0.0, seconds) / HALF_LIFE_S))


def _seconds_that_count(since: float, until: float, now: float) -> float:
    """Return how many of these seconds count at some time: the older, the less."""
    # The wall clock was set back meanwhile.
    if until <= since:
        return 0.0
    return HALF_LIFE_S / math.log(2) * (_left_of(now - until) - _left_of(now - since))


def published_usage(
    account: UsageAccount, running: "Mapping[str, Demand]", size: "tuple[int, int]", now: float,
    before: "Optional[Usage]" = None,
) -> Usage:  # fmt: skip
    """Return what is published of a user from now on: what it was before, unless that is wrong by much.

    Args:
        running: What their jobs have that run, by id.
        size: How many GPUs and cores the machine has.
        now: The time of the wall clock.
    """
    gpu_s, core_s = account.look(running, now)
    gpus, cores = max(1, size[0]), max(1, size[1])
    usage = Usage(int(gpu_s * 1000 / gpus), int(core_s * 1000 / cores), gpus, cores, account.expected_s)
    if before is None:
        return usage
    both = (before.gpus_ms, usage.gpus_ms), (before.cores_ms, usage.cores_ms)
    differs = any(abs(new - old) > max(_WRONG_BY_MS, _WRONG_BY * new) for old, new in both)
    return usage if differs else before
