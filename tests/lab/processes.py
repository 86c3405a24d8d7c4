"""Daemons of the lab: start one, know it again by pid and start time, stop it; and the facts of lab.json.

A pid alone is never trusted: it may have been reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import layout

CLEAN_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class LabError(Exception):
    """The lab could not be built or asked; the message says what to do."""


@dataclass
class Record:
    """What lab.json keeps of one daemon: enough to recognise it and to start it again."""

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    user: str = ""
    pid: int = 0
    started_ticks: int = 0


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat after the command name (which may hold blanks); empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def runs(pid: int) -> bool:
    """There is such a process and it is no zombie."""
    return stat_fields(pid)[:1] not in ([], ["Z"])


def is_alive(record: Record) -> bool:
    """The very process that was recorded still runs (a zombie does not)."""
    fields = stat_fields(record.pid) if record.pid else []
    return bool(fields) and fields[0] != "Z" and int(fields[19]) == record.started_ticks


def start(record: Record) -> Record:
    """Run the daemon in the foreground mode of its own, detached from us, its output going to log/NAME.out."""
    with (layout.LOGS / f"{record.name}.out").open("ab") as log:
        child = subprocess.Popen(
            record.argv,
            env={**CLEAN_ENV, **record.env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=record.user or None,
            group=record.user or None,
            extra_groups=[] if record.user else None,
        )
    child.returncode = 0  # It outlives us on purpose: without this Popen warns about a child still running.
    record.pid = child.pid
    record.started_ticks = int((stat_fields(child.pid) or ["0"] * 20)[19])
    return record


def send(record: Record, number: int) -> None:
    """Signal the daemon if it is still the one that was recorded."""
    if is_alive(record):
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, number)


def stop(record: Record, *, number: int = signal.SIGTERM, patience_s: float = 10.0) -> None:
    """Signal, wait, then SIGKILL; returns when the process is gone."""
    deadline = time.monotonic() + patience_s
    send(record, number)
    while is_alive(record):
        if time.monotonic() > deadline:
            send(record, signal.SIGKILL)
        time.sleep(0.02)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(record.pid, os.WNOHANG)


def run(argv: Sequence[str]) -> str:
    """Run a command of the builder; its output; LabError with both streams if it fails."""
    done = subprocess.run(list(argv), text=True, capture_output=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass
class State:
    """lab.json: the version of the sources that built this lab, its interpreters and its daemons."""

    version: str = ""
    complete: bool = False
    pythons: dict[str, dict[str, str]] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    daemons: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path = layout.STATE_FILE) -> State:
        """The recorded lab; an empty state if there is none. Raises: PermissionError for who may not read it."""
        try:
            raw: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return cls()
        raw["daemons"] = {name: Record(**record) for name, record in raw.get("daemons", {}).items()}
        return cls(**{key: value for key, value in raw.items() if key in cls.__dataclass_fields__})

    def save(self, path: Path = layout.STATE_FILE) -> None:
        """Write beside, then rename: a reader never sees half of it."""
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")
        beside.replace(path)

    def remember(self, record: Record) -> None:
        """Keep this daemon's new pid."""
        self.daemons[record.name] = record
        self.save()

    def claim(self, path: Path) -> None:
        """Note something outside the lab's folder that is about to be made, so that `down` removes it."""
        if str(path) not in self.created:
            self.created.append(str(path))
            self.save()


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """One builder at a time. The lock is the folder above the lab: it needs no file that would have to be removed."""
    handle = os.open(layout.ROOT.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """A lock of this process, which the kernel lets go when it dies; waits for whoever has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def takes(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """The same without waiting; whether this process got it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield takes(handle)
    finally:
        os.close(handle)
