"""What the kernel says of processes, read without the library that tests look at.

A machine runs others' processes, too. A test finds its own by a mark that only they have: a path of the test, a job.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def everyone() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def named(*words: object) -> list[int]:
    """Return the processes that have these words next to one another in their command line."""
    wanted = b"\0".join(os.fsencode(str(word)) for word in words)
    return [pid for pid in everyone() if wanted in command_of(pid)]


def tagged(*jobs: str) -> list[int]:
    """Return the processes that run and have the tag of one of these jobs, or of attempts such as `id/1`."""
    starts = tuple(f"CLUSTERFN_JOB={job}{'' if '/' in job else '/'}".encode() for job in jobs)
    return [pid for pid in everyone() if _begins(_read(pid, "environ"), starts) and is_running(pid)]


def _begins(variables: bytes, starts: tuple[bytes, ...]) -> bool:
    return any(variable.startswith(starts) for variable in variables.split(b"\0"))


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return _read(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"], [b"X"])


def parent_of(pid: int) -> int:
    """Return its parent, or 0 if it has ended."""
    return int((_read(pid, "stat").rpartition(b")")[2].split() or [b"", b"0"])[1])


def group_of(pid: int) -> int:
    """Return its process group, or 0 if it has ended."""
    return int((_read(pid, "stat").rpartition(b")")[2].split() or [b"0"] * 3)[2])


def supervisor_of(folder: Path) -> int:
    """Return the supervisor that has claimed a job or an element last, whose folder this is."""
    lines = (folder / "processes").read_text().splitlines()
    return int(next(line.split()[2] for line in reversed(lines) if line.startswith("supervisor ")))


def agents_here() -> list[int]:
    """Return the agents by which this process runs jobs on its own machine; a shell of each found its interpreter."""
    found = (child for shell in children_of(os.getpid()) for child in children_of(shell))
    return [pid for pid in found if b"\0-c\0while 1: import os" in command_of(pid)]


def children_of(pid: int) -> list[int]:
    """Return the processes that any thread of this one has started and that it has not waited for."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        found += map(int, _read(pid, f"task/{thread}/children").split())
    return found


def descendants_of(pid: int) -> set[int]:
    found, left = set[int](), [pid]
    while left:
        try:
            children = children_of(left.pop())
        except OSError:  # it has ended since
            continue
        left += children
        found.update(children)
    return found


def command_of(pid: int) -> bytes:
    """Return the words by which it was started, each with a NUL behind it; none if it has ended."""
    return _read(pid, "cmdline")


def command_line(pid: int) -> list[bytes]:
    """Return the words by which it was started; none if it has ended."""
    return command_of(pid).split(b"\0")[:-1]


def environment_of(pid: int) -> dict[str, str]:
    variables = _read(pid, "environ").decode(errors="replace").split("\0")
    return dict(variable.split("=", 1) for variable in variables if "=" in variable)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""


def connections() -> list[Any]:
    """All connections of this process to hosts."""
    return list(getattr(sys.modules.get("clusterfn.hosts.connection"), "_opened", ()))
