"""Report the progress of a build: as lines on stdout, and in a file that waiting builders copy.

Losing lines must not matter: the client may be gone, or the disk full.
"""

import contextlib
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


def print_line(line: "dict[str, Any]") -> None:
    """Print one line of JSON."""
    _write(1, (json.dumps(portable(line)) + "\n").encode())


class ProgressWriter:
    """Writes the progress of one build.

    Args:
        path: progress.jsonl; the lines of an earlier build are replaced.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._next: "dict[str, float]" = {}
        with open(path + ".new", "wb"):
            pass
        os.rename(path + ".new", path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def report(
        self, stage: str, done: int = 0, of: int = 0, bytes: "Optional[int]" = None, text: "Optional[str]" = None
    ) -> None:
        """Write how far a stage is; skip lines within half a second of the stage's previous one, except its last."""
        with self._lock:
            now = time.monotonic()
            if now < self._next.get(stage, 0.0) and done < of:
                return
            self._next[stage] = now + _EVERY_S
            line = {"stage": stage, "done": done, "of": of, "bytes": bytes, "text": text}
            data = json.dumps({key: portable(value) for key, value in line.items() if value is not None}) + "\n"
        _write(1, data.encode())
        _write(self._fd, data.encode())


class ProgressFollower:
    """Copies another builder's progress to stdout, except the last line, which each builder prints itself."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = -1
        self._at = 0

    def copy(self) -> None:
        """Copy what was added since the last call."""
        try:
            with open(self._path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._at = inode, 0
                file.seek(self._at)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines(True):
            try:
                stage = str(json.loads(line.decode())["stage"])
            except (ValueError, KeyError, TypeError):
                stage = ""
            if stage not in _LAST:
                _write(1, line)


def last_line(path: str) -> "dict[str, Any]":
    """Return the last complete line of a progress file; empty without one."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        return dict(json.loads(lines[-1].decode())) if lines else {}
    except (OSError, ValueError):
        return {}


def in_words(line: "dict[str, Any]") -> str:
    """Describe a line for people; "" if it names no stage."""
    if not line.get("stage"):
        return ""
    count = " %d of %d" % (line["done"], line["of"]) if line.get("of") else ""
    return "%s%s%s" % (line["stage"], count, ": " + line["text"] if line.get("text") else "")


def _write(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the client is gone, or the disk is full
        os.write(fd, data)
