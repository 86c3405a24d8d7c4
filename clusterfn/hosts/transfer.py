"""Bytes on their way to a host or from it: how many of how many, how fast; how to stop sending; and downloads.

A download brings files here, each whole or not at all, many at a time. Names that come from a host are not trusted:
none may lead out of the folder that the caller chose. Knows nothing of jobs.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import RawIOBase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.supervisor.text import format_duration, format_size
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import loop

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, ListedFile, Reply

# Where output is not redrawn, each report is a line that stays, so reports are rare.
_LARGE = 10 << 20
# A transfer of fewer bytes is shown only if it takes longer than this.
_LONG_S = 2.0
# The rate is the mean over this time.
_WINDOW_S = 10.0
SENDING = "sending"
# The most open requests, and so the most open files.
_AT_ONCE = 100


class Transfer:
    """Files on their way.

    Args:
        doing: What is done with them, as the first word of a line: "sending", "receiving its value".
        replies: The requests that move them.
        size: Bytes in all, where not every request of it has been made yet.
    """

    def __init__(self, doing: str, replies: Iterable[Reply[Any]] = (), size: int | None = None) -> None:
        self.doing = doing
        self._replies = list(replies)
        self._size = size
        # Several displays may measure at once. Each replaces the whole tuple, so at worst a measurement is lost.
        self._points: tuple[tuple[float, int], ...] = ()
        self._shown_from: float | None = None

    def forget(self) -> None:
        """Drop the requests, which have all been answered: a program may follow thousands of jobs."""
        self._replies = []

    def add(self, reply: Reply[Any]) -> None:
        """Add a request that moves files of it."""
        self._replies.append(reply)

    @property
    def size(self) -> int:
        """Bytes in all, as far as they are known."""
        return sum(reply.size or 0 for reply in self._replies) if self._size is None else self._size

    @property
    def moved(self) -> int:
        """Bytes that have been sent or have come; what the host had already counts as sent."""
        return sum(reply.size if reply.done() and reply.size else reply.moved for reply in self._replies)

    @property
    def progress(self) -> tuple[int, int] | None:
        """Bytes that were moved, of how many; None where there is nothing to show."""
        return (self.moved, self.size) if self.size and self.goes_on else None

    @property
    def goes_on(self) -> bool:
        """Whether bytes are still to move."""
        return self.moved < self.size if self._size is not None else not all(r.done() for r in self._replies)

    def in_words(self) -> str:
        """Return such as "sending 38 of 114 MB, 3.0 MB/s, 25 s left"; "" where there is too little to mention."""
        amounts = self.amounts()
        return f"{self.doing} {amounts}" if amounts else ""

    def amounts(self) -> str:
        """Return the same without the verb. Call it repeatedly: it takes the rate from the time between calls."""
        now, moved, size = time.monotonic(), self.moved, self.size
        if not size or not self.goes_on or (self.doing != SENDING and not moved):
            return ""
        points = self._points
        if points and moved < points[-1][1]:
            # After a reconnect some bytes are sent again, so the earlier measurements no longer give the rate.
            points = ()
        # Several displays may ask at short intervals, so measure at most five times a second.
        if not points or now - points[-1][0] >= 0.2:
            points = (*points, (now, moved))
        # Always keep two measurements, because one alone gives no rate.
        while now - points[0][0] > _WINDOW_S and len(points) > 2:
            points = points[1:]
        self._points = points
        began, before = points[0]
        # The rate is 0 until one second of measurements exists.
        rate = int((moved - before) / (now - began)) if now - began >= 1.0 else 0
        self._shown_from = now if self._shown_from is None else self._shown_from
        if size < _LARGE and now - self._shown_from < _LONG_S:
            return ""
        amount = f"{format_size(moved)} of {format_size(size)}" if moved else format_size(size)
        if not rate:
            return amount
        return f"{amount}, {format_size(rate)}/s, {format_duration(round((size - moved) / rate))} left"


class Sending(Transfer):
    """All that a job needs on its way to the host; the last of `uploads` makes the job's own folder."""

    def __init__(self, uploads: Sequence[Reply[Any]]) -> None:
        super().__init__(SENDING, uploads)
        self.dropped = False
        # Called once it is certain that the job will never start.
        self.on_dropped: Callable[[], None] | None = None

    @property
    def unsent(self) -> bool:
        """Whether some of it has not left this machine."""
        return any(not reply.done() and reply.moved < (reply.size or 0) for reply in self._replies)

    def drop(self, connection: HostConnection, last: str, timeout_s: float) -> bool:
        """Send no more of it; return whether that keeps the job from ever starting.

        Args:
            last: What is there once all of it has arrived, and without which nothing starts.

        Raises:
            HostError: All of it had left, and the host does not say whether it has arrived.
        """
        if not self._replies or self._replies[-1].done():
            return False
        left = not self.unsent
        self.dropped = True
        # Cancel the last upload first, because the job's folder that it makes is what lets the job start.
        for reply in reversed(self._replies):
            reply.cancel()
        question: Reply[list[bool]] | None = None
        try:
            # A request that is cancelled here may still have been carried out there, so ask.
            question = connection.have([last])
            self._conclude(not question.result(timeout_s)[0])
        except HostError:
            # If some of it never left this machine, the host cannot have all of it, whatever it would answer.
            if left:
                self.dropped = False
                if question is not None:
                    loop.begin(self._conclude_late(question))
                raise
            self._conclude(True)
        return self.dropped

    async def _conclude_late(self, question: Reply[list[bool]]) -> None:
        with contextlib.suppress(HostError):
            # If the host never answers, nothing more can be learnt.
            self._conclude(not (await question)[0])

    def _conclude(self, dropped: bool) -> None:
        self.dropped = dropped
        if dropped and self.on_dropped is not None:
            self.on_dropped()


def download(
    connection: HostConnection,
    folder: str,
    files: Sequence[ListedFile],
    to: Path,
    on_request: Callable[[Reply[Any]], object],
) -> list[Path]:
    """Fetch files below a folder of the host, and return where they are. Leave out those that are gone, unless all are.

    Args:
        files: As the host has listed them, with names below the folder.
        on_request: Called with the reply to each request that moves files.

    Raises:
        ClusterfnError: A name leads out of the folder `to`; nothing is fetched then. Or a file cannot be written here.
        HostError: A file cannot be read, or all of them are gone.
    """
    # Check all names before the first request, so that a malicious name fetches nothing at all.
    targets = {file.name: to.joinpath(*safe_parts(file.name)) for file in files}
    to_ask = collections.deque(files)
    # Many requests are open at once, because otherwise each file would cost a round trip.
    under_way: collections.deque[_File] = collections.deque()
    stored: list[Path] = []
    missing: list[HostError] = []
    try:
        while to_ask or under_way:
            while to_ask and len(under_way) < _AT_ONCE:
                file = to_ask.popleft()
                is_program = bool(file.mode & stat.S_IXUSR)
                under_way.append(_File(connection, f"{folder}/{file.name}", targets[file.name], is_program))
                on_request(under_way[-1].ask())
            try:
                stored.append(under_way[0].finish())
            except HostError as error:
                if error.kind != "missing":
                    raise
                # A running job may rename or remove a file after the host has
                # listed it. That is an error only if all files are gone.
                missing.append(error)
            under_way.popleft()
    finally:
        for transfer in under_way:
            transfer.give_up()
    if missing and not stored:
        raise missing[0]
    return stored


class _File:
    """A file on its way. It lies next to the one that it becomes, once it is whole, and has the mode of the umask."""

    def __init__(self, connection: HostConnection, path: str, target: Path, is_program: bool) -> None:
        self._connection = connection
        self._path, self._target = path, target
        self._mode = 0o777 if is_program else 0o666
        # Choose the name before the file exists: Ctrl-C may come at any moment, and `give_up` needs the name.
        self._part = target.with_name(f".part-{secrets.token_hex(8)}")
        self._file: RawIOBase | None = None
        self._is_over = False
        # The connection's reader thread writes, while the caller's thread finishes or gives up.
        self._lock = threading.Lock()
        self._reply: Reply[int] | None = None

    def ask(self) -> Reply[Any]:
        """Send the request, and return the reply to it."""
        self._reply = self._connection.get(self._path, self.write)
        return self._reply

    def write(self, piece: bytes) -> int:
        """Take a piece of it; raise ClusterfnError if this machine cannot store it."""
        with self._lock:
            if not self._is_over:
                self._store(piece)
        return len(piece)

    def _store(self, piece: bytes) -> None:
        with self._errors_named():
            if self._file is None:
                try:
                    self._file = self._opened()
                except FileNotFoundError:
                    # Make folders only where they are missing: most files share a few of them.
                    self._target.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self._opened()
            rest = memoryview(piece)
            while rest:
                written = self._file.write(rest)
                rest = rest[written or 0 :]

    def _opened(self) -> RawIOBase:
        return open(self._part, "xb", buffering=0, opener=lambda path, flags: os.open(path, flags, self._mode))

    def finish(self) -> Path:
        """Wait for the rest of it, and return where it is."""
        assert self._reply is not None
        self._reply.result(None)
        with self._lock:
            # A file without content has come in no piece.
            self._store(b"")
            with self._errors_named():
                if self._file is not None:
                    self._file.close()
                self._part.replace(self._target)
        return self._target

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ClusterfnError(
                f"{self._target} cannot be written on this machine: {error.strerror or error}",
                hint="fetch it into another folder, with to=, or make room for it in this one",
            ) from error

    def give_up(self) -> None:
        """Cancel it, and remove what has come."""
        if self._reply is not None:
            self._reply.cancel()
        with self._lock:
            self._is_over = True
            with contextlib.suppress(OSError):
                # On a full disk, closing fails because it cannot write what is
                # still buffered. The original error says so already.
                if self._file is not None:
                    self._file.close()
            with contextlib.suppress(OSError):
                # The error that led here says more than a failed removal. What is whole no longer exists by this name.
                self._part.unlink()


# Matches NUL and halves of characters. The surrogates of bytes that are not UTF-8 are allowed.
_NO_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
# Windows takes these names for devices, whatever their ending.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)


def safe_parts(name: str, *, windows: bool = sys.platform == "win32") -> tuple[str, ...]:
    """Return the parts of a relative name; reject one that leads out of its folder. Windows rejects more characters."""
    parts = PurePosixPath(name).parts
    odd = windows and any(
        set(part) & set('\\:*?"<>|') or part.endswith((".", " ")) or _DEVICES.fullmatch(part) for part in parts
    )
    if not parts or ".." in parts or name.startswith("/") or _NO_NAME.search(name) or odd:
        raise ClusterfnError(f"the host names a file {name!r}, which would be outside the chosen folder")
    return parts
