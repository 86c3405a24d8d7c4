"""The journal of a sweep: a JSON line for each decision, on the disk before the next step; one writer at a time.

Whoever opens it again learns from it what has been done. Judges nothing. Called by `story`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from clusterfn.errors import ConfigError

FORMAT = 1
_BEGIN = b'{"event": "begin"'
_LOCK_AT = 1 << 40  # a byte that is never written; Windows locks bytes


class Journal:
    """One file, open and locked until `close`.

    Args:
        path: Made if it is not there.

    Attributes:
        records: What stood in it when it was opened.

    Raises:
        ConfigError: Another process has it, it cannot be written, or it is something else than a journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("a+b")
        except OSError as error:
            raise ConfigError(f"the journal cannot be written: {error}", hint="name another file: journal=") from error
        try:
            self._lock()
            self.records = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others have it."""
        self._file.close()

    def _lock(self) -> None:
        try:
            _take(self._file.fileno())
        except OSError:
            raise ConfigError(
                f"another process goes on with {self.path}", hint="wait for it, or give another file: journal="
            ) from None

    def _read(self) -> list[dict[str, Any]]:
        """What stands in it; a line that was torn says nothing, and what is appended begins a line of its own."""
        self._file.seek(0)
        text = self._file.read()
        if text[: len(_BEGIN)] != _BEGIN[: len(text)]:
            raise ConfigError(f"{self.path} is not the journal of a sweep", hint="give another file: journal=")
        if text and not text.endswith(b"\n"):
            self._file.write(b"\n")
        records = [_record(line) for line in text.splitlines()]
        return [each for each in records if each]

    def add(self, event: str, **facts: Any) -> None:
        """Append one line, which is then on the disk. What JSON has no word for is written as Python shows it."""
        record = {"event": event, **facts, "t": round(time.time(), 3)}
        line = json.dumps(record, default=repr, ensure_ascii=False)
        self._file.write(line.encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def told(self, event: str) -> list[dict[str, Any]]:
        """The lines about one kind of event that stood in it."""
        return [each for each in self.records if each["event"] == event]


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "event" in found else {}


def _take(fd: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, _LOCK_AT, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
