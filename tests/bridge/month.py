"""A root that grows old: days pass, clocks are set, the machine restarts, a user is logged out. No test in here.

Time passes by dating every file back: for everything that compares a file's date with the clock, that is the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

from clusterfn.bridge.supervisor.job import JobFolder
from clusterfn.bridge.supervisor.main import remove_expired
from tests.bridge.host import Bench, Job, is_running
from tests.waiting import until

DAY_S = 86400.0
SLACK_DAYS = 2.5  # two looks, a day apart, and the day on which the second one comes


class Month:
    """One root over many days.

    Attributes:
        now_s: The true time since the first day.
        wrong_s: How much the machine's clock is ahead of it.
        kept: For each job that has ended: when, in true time, for how many days it is kept, and how much the clock was
            ahead that dated it.
        open: Jobs that have not ended: what holds them must stay.
        called: What each of the user's calls that look after the queue writes.
        tmp: The jobs' folder for temporary files.
    """

    def __init__(self, bench: Bench, tmp: Path) -> None:
        self.bench, self.tmp = bench, tmp
        self.now_s = self.wrong_s = 0.0
        self.kept: dict[str, tuple[float, float, float]] = {}
        self.open: dict[str, Job] = {}
        self.called: list[Path] = []

    @property
    def day(self) -> float:
        return self.now_s / DAY_S

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self._age(seconds)

    def set_clock(self, ahead_s: float) -> None:
        """Let the clock be wrong by so much, as NTP finds it or leaves it."""
        self._age(ahead_s - self.wrong_s)
        self.wrong_s = ahead_s

    def _age(self, seconds: float) -> None:
        for folder, _, names in os.walk(self.bench.root):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                with contextlib.suppress(FileNotFoundError):  # a job that runs has replaced it
                    then = os.lstat(path).st_mtime_ns - int(seconds * 1e9)
                    os.utime(path, ns=(then, then), follow_symlinks=False)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """All files below the root that are still there when they are looked at: programs may remove some meanwhile."""
        found = []
        for folder, _, names in os.walk(self.bench.root):  # rglob() fails if a folder vanishes
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found.append((Path(folder, name), os.lstat(os.path.join(folder, name))))
        return found

    def end_job(self, keep_days: float, **spec: object) -> Job:
        """A job that ends now, and whose supervisor then looks for what is no longer needed."""
        job = self.bench.ended(keep_days=keep_days, **spec)
        self.kept[job.id] = (self.now_s, keep_days, self.wrong_s)
        remove_expired(JobFolder(str(job.folder)))
        return job

    def purge_tmp(self) -> None:
        """A site empties /tmp."""
        shutil.rmtree(self.tmp, ignore_errors=True)
        self.tmp.mkdir()

    def purge_root(self, days: float) -> int:
        """A site removes files, not folders, that were not written for so long; how many."""
        old = [path for path, seen in self._files() if time.time() - seen.st_mtime > days * DAY_S]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def processes(self) -> list[int]:
        """Those that work for this root."""
        word, pids = os.fsencode(self.bench.root), [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if word in _words(pid) and is_running(pid)]

    def log_out(self) -> None:
        """End every process of the user, as logind does."""
        while found := self.processes():
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            until(lambda found=found: not any(map(is_running, found)))  # type: ignore[misc]

    def restart(self) -> None:
        """The machine restarts: no processes, an empty /tmp, and all that names a boot names an earlier one."""
        self.log_out()
        self.purge_tmp()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for path, seen in self._files():
            if path.is_file() and seen.st_size < 1 << 20 and boot.encode() in (text := path.read_bytes()):
                path.write_bytes(text.replace(boot.encode(), b"0" * 8 + boot[8:].encode()))
                os.utime(path, ns=(seen.st_mtime_ns, seen.st_mtime_ns))

    def wrong(self) -> list[str]:
        """What must not be today: a job that is gone too early, or one that is there too late."""
        found = [f"day {self.day:.1f}: {job} has not ended and is gone" for job, at in self.open.items()
                 if not at.folder.exists()]  # fmt: skip
        for job, (ended_s, keep_days, ahead_s) in self.kept.items():
            outcome = self.bench.root / "jobs" / job / "attempts" / "1" / "outcome.json"
            age_days = (self.now_s - min(ended_s, ended_s + ahead_s)) / DAY_S  # its date is all that a host has
            if age_days > keep_days:
                continue
            if not outcome.exists():
                found.append(f"day {self.day:.1f}: {job} ended {age_days:.1f} days ago, is kept for {keep_days}: gone")
            elif json.loads(outcome.read_text())["kind"] != "returned":
                found.append(f"day {self.day:.1f}: the outcome of {job} has changed")
        return found

    def overdue(self) -> list[str]:
        """Jobs that should have been removed by now."""
        due = {
            job: max(ended_s, ended_s + ahead_s) + (keep_days + SLACK_DAYS) * DAY_S
            for job, (ended_s, keep_days, ahead_s) in self.kept.items()
        }
        return [job for job, at in due.items() if at < self.now_s and (self.bench.root / "jobs" / job).exists()]

    def size(self) -> int:
        """Bytes of all files below the root."""
        return sum(seen.st_size for _, seen in self._files())


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
