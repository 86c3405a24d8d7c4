"""The journal of a sweep: a JSON line for each decision, on the disk before the next step; one writer at a time.

A sweep that is resumed reads from it what has been done. Judges nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from clusterfn.errors import ClusterfnError, ConfigError

FORMAT = 1
_BEGIN = b'{"event": "begin"'
_LEVELS = 3  # a record, its configurations, one of them
_LOCK_AT = 1 << 40  # a byte that is never written; Windows locks bytes


class SweepJournal:
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
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise ConfigError(f"the journal cannot be written: {error}", hint="name another file: journal=") from error
        self._before = b""
        try:
            self._lock()
            self.records = self._read()
        except BaseException:  # Ctrl-C too: nothing else closes the file
            self._file.close()
            raise

    def __enter__(self) -> SweepJournal:
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
        if b"\n" not in text:  # not even the first line is whole
            self._file.truncate(0)
            return []
        self._before = b"" if text.endswith(b"\n") else b"\n"
        records = [_record(line) for line in text.splitlines()]
        return [each for each in records if each]

    def add(self, event: str, **facts: Any) -> None:
        """Append one line, which is then on the disk. What JSON has no word for is written as Python shows it.

        Raises:
            ClusterfnError: The disk does not take it.
        """
        line = _json({"event": event, **facts, "t": round(time.time(), 3)}).encode("utf-8", "backslashreplace")
        try:
            self._write(self._before + line + b"\n")
        except OSError as error:
            raise ClusterfnError(
                f"the journal cannot be written: {error}", log=str(self.path),
                hint="make room, then run the same with the same journal=: what is not in it is asked of the host",
            ) from error  # fmt: skip
        self._before = b""

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        os.fsync(self._file.fileno())

    def told(self, event: str) -> list[dict[str, Any]]:
        """The lines about one kind of event that stood in it."""
        return [each for each in self.records if each["event"] == event]


def _json(value: Any, levels: int = _LEVELS) -> str:
    """As JSON; where keys are no texts, or something contains itself, what holds it is written as Python shows it."""
    try:
        return json.dumps(value, default=repr, ensure_ascii=False)
    except (TypeError, ValueError):
        if levels and isinstance(value, dict) and all(isinstance(key, str) for key in value):
            parts = [f"{json.dumps(key, ensure_ascii=False)}: {_json(each, levels - 1)}" for key, each in value.items()]
            return f"{{{', '.join(parts)}}}"
        return json.dumps(repr(value), ensure_ascii=False)


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
