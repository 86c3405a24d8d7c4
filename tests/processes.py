"""What the kernel says of processes, read without the library that tests look at."""

from __future__ import annotations

import os
from pathlib import Path


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])


def supervisor_of(folder: Path) -> int:
    """Return the supervisor that has claimed a job or an element last, whose folder this is."""
    lines = (folder / "processes").read_text().splitlines()
    return int(next(line.split()[2] for line in reversed(lines) if line.startswith("supervisor ")))


def children_of(pid: int) -> list[int]:
    """Return the processes that any thread of this one has started and that it has not waited for."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
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


def command_line(pid: int) -> list[bytes]:
    """Return the words by which it was started; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


def environment_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return dict(each.split("=", 1) for each in text.split("\0") if "=" in each)
