"""Report the progress of a build: as lines on stdout, and in a file whose last line waiting builders repeat.

Losing lines must not matter: the client may be gone, or the disk full.
"""

import contextlib
import json
import os
import threading
import time

from ..supervisor import publish
from ..supervisor.text import format_size, portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

_EVERY_S = 0.5
_LONGEST_LINE = 1 << 20


def print_line(line: "Mapping[str, Any]", *files: int) -> None:
    """Print one line of JSON, and write it to these files, too."""
    data = (json.dumps(portable(line)) + "\n").encode()
    for fd in (1,) + files:
        # The client may be gone, or the disk full.
        with contextlib.suppress(OSError):
            os.write(fd, data)


class ProgressWriter:
    """Writes the progress of one build into a file, from which the lines of an earlier build go."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._next: "dict[str, float]" = {}
        publish.replace(path, b"", sync=False, mode=0o666)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def report(
        self,
        stage: str,
        done: int = 0,
        of: int = 0,
        bytes: "Optional[int]" = None,
        size: "Optional[int]" = None,
        text: "Optional[str]" = None,
    ) -> None:
        """Write how far a stage is; skip lines within half a second of the stage's previous one, except its last.

        `bytes` of `size` are done; None where that is not known.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._next.get(stage, 0.0) and done < of:
                return
            self._next[stage] = now + _EVERY_S
        line = {"stage": stage, "done": done, "of": of, "bytes": bytes, "size": size, "text": text}
        print_line({key: value for key, value in line.items() if value is not None}, self._fd)


def last_line(path: str) -> "dict[str, Any]":
    """Return the last complete line of a progress file; empty without one."""
    lines = publish.last_bytes(path, _LONGEST_LINE).split(b"\n")[:-1]
    try:
        return dict(json.loads(lines[-1].decode())) if lines else {}
    except ValueError:
        return {}


def in_words(line: "Mapping[str, Any]") -> str:
    """Describe a line for people; "" if it names no stage.

    Example:
        >>> in_words({"stage": "fetch", "done": 6, "of": 60, "bytes": 30 << 20, "size": 2560 << 20})
        'fetch 6 of 60, 30 MB of 2.5 GB'
    """
    if not line.get("stage"):
        return ""
    count = " %d of %d" % (line["done"], line["of"]) if line.get("of", 0) > 1 else ""
    done, of = line.get("bytes", 0), line.get("size", 0)
    amount = format_size(done) + (" of " + format_size(of) if of > done else "")
    moved = ", " + amount if max(done, of) >> 20 else ""
    return "%s%s%s%s" % (line["stage"], count, moved, ": " + line["text"] if line.get("text") else "")
