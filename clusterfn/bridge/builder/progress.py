"""Lines that say how far a build is: to this process's own output, and to a file that other builders copy.

Losing them must not matter: the client may be gone, the disk full.
"""

import json
import os
import threading
import time

from ..supervisor.text import portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_EVERY_S = 0.5
_LAST = ("done", "failed")


def say(line: "dict[str, Any]") -> None:
    """One line to whoever started this process."""
    _write(1, (json.dumps(portable(line)) + "\n").encode())


class Progress:
    """What one build tells.

    Args:
        path: progress.jsonl; what an earlier build told there is replaced.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._next: "dict[str, float]" = {}
        with open(path + ".new", "wb"):
            pass
        os.rename(path + ".new", path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def tell(
        self, stage: str, done: int = 0, of: int = 0, bytes: "Optional[int]" = None, text: "Optional[str]" = None
    ) -> None:
        """How far it is; within half a second of this stage's last line it is left out, but for its end."""
        with self._lock:
            now = time.monotonic()
            if now < self._next.get(stage, 0.0) and done < of:
                return
            self._next[stage] = now + _EVERY_S
            line = {"stage": stage, "done": done, "of": of, "bytes": bytes, "text": text}
            told = {key: portable(value) for key, value in line.items() if value is not None}
            data = (json.dumps(told) + "\n").encode()
        _write(1, data)
        _write(self._fd, data)


class Follower:
    """Copies what another builder tells to this process's output, but for its last word: that is said anew."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = -1
        self._at = 0

    def copy(self) -> None:
        """What was added since the last look."""
        try:
            with open(self._path, "rb") as file:
                self._seek(file)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines(True):
            if _stage(line) not in _LAST:
                _write(1, line)

    def _seek(self, file: "Any") -> None:
        inode = os.fstat(file.fileno()).st_ino
        if inode != self._inode:
            self._inode, self._at = inode, 0
        file.seek(self._at)


def last(path: str) -> "dict[str, Any]":
    """The last whole line of a progress file; empty if there is none."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        return dict(json.loads(lines[-1].decode())) if lines else {}
    except (OSError, ValueError):
        return {}


def in_words(line: "dict[str, Any]") -> str:
    """A line for people; "" if it tells of no stage."""
    if not line.get("stage"):
        return ""
    count = " %d of %d" % (line["done"], line["of"]) if line.get("of") else ""
    return "%s%s%s" % (line["stage"], count, ": " + line["text"] if line.get("text") else "")


def _stage(line: bytes) -> str:
    try:
        return str(json.loads(line.decode())["stage"])
    except (ValueError, KeyError, TypeError):
        return ""


def _write(fd: int, data: bytes) -> None:
    try:
        os.write(fd, data)
    except OSError:  # the client is gone, or the disk is full
        return
