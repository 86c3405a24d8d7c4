"""What is called while round trips are counted: as functions of a script, and as those of a module of one's own."""

import time
from pathlib import Path
from typing import Any


def double(x: Any) -> Any:
    return 2 * x


def length(data: bytes) -> int:
    return len(data)


def made(size: int) -> bytes:
    return b"x" * size


def fail() -> None:
    raise KeyError("as itself")


def speak(lines: int) -> int:
    for number in range(lines):
        print("line", number)
    return lines


def leave(files: int) -> int:
    for number in range(files):
        Path(f"left-{number}.txt").write_text(f"left {number}")
    return files


def wait() -> None:
    time.sleep(60)


def read(file: str) -> int:
    return len(Path(file).read_bytes())


def rest(x: int) -> int:
    """One of many; by its mark the function is found among what was sent."""
    mark = "one function for all items"
    time.sleep(60)
    return x + len(mark)
