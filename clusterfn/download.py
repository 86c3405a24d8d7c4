"""Files of a job: what there is, and fetching it whole or not at all.

Names that come from a host are not trusted: none may lead out of the folder that the caller chose. Called by `job`
and the CLI.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from clusterfn.errors import ClusterfnError, HostError

if TYPE_CHECKING:
    from clusterfn.host import HostConnection

_LIMIT = 10000
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class RemoteFile:
    """A file that a job left.

    Attributes:
        name: Relative to the job's folder, with slashes.
        size: Bytes.
    """

    name: str
    size: int


def list_files(connection: HostConnection, folder: str, pattern: str = "**") -> list[RemoteFile]:
    """The files below a folder there that match a pattern."""
    entries = connection.list(folder, pattern, limit=_LIMIT).result(_TIMEOUT_S)
    return [RemoteFile(entry.name, entry.size) for entry in entries]


def read_text(connection: HostConnection, path: str) -> str:
    """A file there as text; "" if it does not exist."""
    try:
        return read_bytes(connection, path).decode("utf-8", "replace")
    except HostError as error:
        if error.kind != "missing":
            raise
        return ""


def read_bytes(connection: HostConnection, path: str) -> bytes:
    """A file there.

    Raises:
        HostError: There is none (`kind` is "missing"), or it cannot be read.
    """
    out = io.BytesIO()
    connection.get(path, out).result(None)
    return out.getvalue()


def fetch(connection: HostConnection, folder: str, pattern: str, to: Path) -> list[Path]:
    """Fetch the files that match; see `Job.download`."""
    found = list_files(connection, folder, pattern)
    if not found:
        there = [file.name for file in list_files(connection, folder)][:20]
        raise ClusterfnError(
            f"the job left no file that matches {pattern!r}",
            evidence=there or ["the function left no files in its folder"],
            hint="relative paths in the function are taken from the job's own folder",
        )
    return [_fetch_one(connection, folder, file, to) for file in found]


def _fetch_one(connection: HostConnection, folder: str, file: RemoteFile, to: Path) -> Path:
    target = to.joinpath(*_safe_parts(file.name))
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as out:
            connection.get(f"{folder}/{file.name}", out).result(None)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink()
        raise
    return target


# Names that Windows takes for a device, whatever their ending.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)


def _safe_parts(name: str, *, windows: bool = os.name == "nt") -> tuple[str, ...]:
    """The parts of a relative name that stays below any folder; a colon and a backslash are ordinary but on Windows."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\0" in name or (windows and any(map(_is_odd, parts))):
        raise ClusterfnError(f"the host names a file {name!r}, which would lie outside the chosen folder")
    return parts


def _is_odd(part: str) -> bool:
    return bool(set(part) & set('\\:*?"<>|')) or part.endswith((".", " ")) or _DEVICES.fullmatch(part) is not None
