"""A job seen on the host's own disk and in its process table: how far it came, who works for it, how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.processes import command_of, everyone, is_running, parent_of, supervisor_of, tagged

_RESERVED = 131072


class JobOnHost:
    """One job, by its folder jobs/<id>."""

    def __init__(self, root: Path, job: str, runs: Path) -> None:
        self.id = job
        self.folder = root / "jobs" / job
        self.runs_file = runs / job
        self._first = self.folder / "attempts" / "1"

    # how far it came

    def events(self, attempt: int = 1) -> list[dict[str, Any]]:
        """What its supervisor has noted."""
        text = _read(self.folder / "attempts" / str(attempt) / "events.jsonl")
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    def is_at(self, stage: str) -> bool:
        """Whether it has come as far as this stage; cheap, for it is asked 200 times a second."""
        if stage == "submit":
            return self.folder.exists()
        if stage == "start":
            return (self.folder / "scheduler.log").exists()
        if stage == "claimed":
            return (self.folder / "claim").exists()
        if stage == "lease":
            return any(self.folder.parents[1].glob(f"machines/*/queue/{self.id}"))
        if stage == "supervisor":
            return self._is_publishing() or (self._first / "outcome.json").exists()
        if stage == "published":
            return (self._first / "outcome.json").exists()
        text = _read(self._first / "events.jsonl")
        return _WORDS[stage] in text

    def _is_publishing(self) -> bool:
        try:
            names = [name for name in os.listdir(self._first) if name.startswith((".reserve-", ".outcome"))]
            sizes = [os.stat(self._first / name).st_size for name in names]
        except OSError:
            return False
        return any(size != _RESERVED for size in sizes) and bool(self.events()[-1:]) and self.is_at("result")

    # who works for it

    def pids(self) -> dict[str, int]:
        """script, supervisor and worker, as far as they live. The script's working directory is the job's folder."""
        found: dict[str, int] = {}
        for pid in sorted(everyone(), reverse=True):
            words = command_of(pid)
            if b"worker.py" in words and self.id.encode() in words:
                found["worker"] = pid
            elif (b"job.sh" in words or b"slurm_script" in words) and _cwd(pid) == str(self.folder):
                found["script"] = pid
        with contextlib.suppress(OSError, StopIteration):
            supervisor = supervisor_of(self.folder)
            found.update({"supervisor": supervisor} if is_running(supervisor) else {})
        return found

    def by_event(self) -> dict[str, int]:
        """The same, from the supervisor's own word about the worker. Never 0 or 1, which stand for one that is gone."""
        worker = next(event["pid"] for event in self.events() if event["event"] == "starting")
        supervisor = supervisor_of(self.folder)
        found = {"worker": worker, "supervisor": supervisor, "script": parent_of(supervisor)}
        return {name: pid for name, pid in found.items() if pid > 1}

    def processes(self) -> list[str]:
        """Living processes that carry its tag or are of its bridge, in words."""
        return processes_of([self])

    def tagged(self) -> list[str]:
        """Those that carry its tag."""
        return [f"{pid} {command_of(pid)!r}" for pid in tagged(self.id)]

    # how it ended

    def attempts(self) -> list[Path]:
        """Their folders, in order."""
        return sorted(self.folder.glob("attempts/[0-9]*"), key=lambda path: int(path.name))

    def outcomes(self) -> dict[str, bytes]:
        """Attempt -> outcome.json."""
        return {path.name: data for path in self.attempts() if (data := _read(path / "outcome.json"))}

    def finals(self) -> list[dict[str, Any]]:
        """All final outcomes: there must be one."""
        return [found for found in map(json.loads, self.outcomes().values()) if found["final"]]

    def runs(self) -> list[str]:
        """One "<id>/<attempt>" per run of the function."""
        return [line.split()[0] for line in _read(self.runs_file).decode().splitlines()]

    def history(self) -> str:
        """All that lies there, for a failed assertion."""
        shown = [f"{self.folder}: {sorted(os.listdir(self.folder)) if self.folder.exists() else 'absent'}"]
        shown += [_read(self.folder / "scheduler.log").decode(errors="replace"), f"runs: {self.runs()}"]
        for path in self.attempts():
            shown += [f"attempt {path.name}: owner {_read(path / 'owner')!r}", _read(path / "outcome.json").decode()]
            shown += [json.dumps(event) for event in self.events(int(path.name))]
        return "\n".join(shown)


_WORDS = {
    "environment": b'"event": "starting"',
    "load": b'"stage": "load"',
    "function": b'"event": "running"',
    "result": b'"stage": "result"',
}


def processes_of(jobs: Iterable[JobOnHost]) -> list[str]:
    """The same of many jobs, in one look at all processes."""
    ids = {job.id.encode() for job in jobs}
    return [f"{pid} {command_of(pid)!r}" for pid in sorted(everyone(), reverse=True) if _belongs(pid, ids)]


def until(look: Callable[[], Any], limit_s: float, pause_s: float = 0.02) -> Any:
    """What `look` gives as soon as it is true; what it gives at last otherwise."""
    deadline = time.monotonic() + limit_s
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(pause_s)
    return found


def until_none(look: Callable[[], list[str]], limit_s: float) -> list[str]:
    """What `look` still finds after that time."""
    found = look()
    deadline = time.monotonic() + limit_s
    while found and time.monotonic() < deadline:
        time.sleep(0.2)
        found = look()
    return found


def session_of(agent: int) -> list[int]:
    """The sshd processes that serve an agent, nearest first; not the one that listens."""
    found = []
    pid = parent_of(agent)
    while pid > 1:
        if _read(Path(f"/proc/{pid}/comm")).strip() == b"sshd" and b"listener" not in command_of(pid):
            found.append(pid)
        pid = parent_of(pid)
    return found


@contextlib.contextmanager
def stopped(pids: Collection[int]) -> Iterator[None]:
    """SIGSTOP these processes for the length of a with block."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _belongs(pid: int, jobs: Collection[bytes]) -> bool:
    if not is_running(pid):
        return False
    words = command_of(pid)
    ours = b"job.sh" in words or b"supervise.py" in words or b"worker.py" in words
    if ours and any(job in words for job in jobs):
        return True
    tag = b"CLUSTERFN_JOB="
    entries = _read(Path(f"/proc/{pid}/environ")).split(b"\0")
    return any(entry[len(tag) :].split(b"/")[0] in jobs for entry in entries if entry.startswith(tag))


def _cwd(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
