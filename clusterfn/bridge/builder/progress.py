"""Report a build: its progress, as lines on stdout and in a file whose last line waiting builders repeat; its failure.

Losing lines must not matter: the client may be gone, or the disk full.
"""

import contextlib
import errno
import json
import os
import threading
import time

from .. import layout
from ..supervisor import publish
from ..supervisor.text import format_size, portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Sequence

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
ROOM = "make room there (clusterfn env gc), or point env_root: to another file system"


class BuildFailed(Exception):
    """The environment cannot be built."""

    def __init__(
        self, message: str, *, stage: str, evidence: "Sequence[str]" = (), hint: str = "", need: "Sequence[str]" = ()
    ) -> None:
        super().__init__(message)
        self.stage = stage  # docs/reference/builder.md lists them
        self.evidence = list(evidence)  # lines of other programs, unchanged
        self.hint = hint
        self.need = list(need)  # SHA-256 of missing archives that the client may send

    def document(self) -> "dict[str, Any]":
        """Return the content of outcome.json."""
        content = {"ok": False, "message": str(self), "evidence": self.evidence, "hint": self.hint, "stage": self.stage}
        return dict(portable(dict(content, need=self.need) if self.need else content))


def from_os_error(error: OSError, root: str) -> BuildFailed:
    """Describe what the file system refused, with its numbers."""
    where = "%s: %s" % (os.strerror(error.errno) if error.errno else error, error.filename or root)
    if error.errno in layout.DISK_ERRORS:
        # These imports are late for the same reason.
        from ..agent.files import disk_left
        from ..supervisor.text import format_size

        left = disk_left(os.path.join(root, "file"))
        files = "" if left["files"] is None else ", %d files" % left["files"]
        free = [] if left["free"] is None else ["free under %s: %s%s" % (root, format_size(left["free"]), files)]
        return BuildFailed("the disk is full: %s" % where, stage="disk", evidence=free, hint=ROOM)
    if error.errno in _DENIED:
        hint = "point env_root: to a folder that you may write to"
        return BuildFailed("nothing may be written there: %s" % where, stage="disk", hint=hint)
    return BuildFailed("the file system refused: %s" % where, stage="disk", hint="look at the file system of %s" % root)


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
