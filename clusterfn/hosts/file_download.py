"""Bring files of a host to this machine, each whole or not at all, many at a time.

Names that come from a host are not trusted: none may lead out of the folder that the caller chose.
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
from collections.abc import Callable, Iterator, Sequence
from io import RawIOBase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from clusterfn.errors import ClusterfnError, HostError

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, ListedFile, Reply

# The most open requests, and so the most open files.
_AT_ONCE = 100


def download(
    connection: HostConnection, folder: str, files: Sequence[ListedFile], to: Path,
    on_request: Callable[[Reply[Any]], object],
) -> list[Path]:  # fmt: skip
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
        for each in under_way:
            each.give_up()
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
        """Take a piece of it.

        Raises:
            ClusterfnError: This machine cannot store it.
        """
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
                rest = rest[self._file.write(rest) or 0 :]

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
