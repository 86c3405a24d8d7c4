"""Files of a job: what there is, reading it, fetching what matches a pattern, and removing its folder.

Names that come from a host are not trusted: each must match the pattern that was asked for.
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.supervisor.output import put_in_order
from clusterfn.bridge.supervisor.text import counted, format_size
from clusterfn.config import places, units
from clusterfn.errors import ClusterfnError, ConfigError, HostError
from clusterfn.hosts import exit_flush
from clusterfn.hosts.bridge_bundle import removal_command
from clusterfn.hosts.transfer import Transfer, download
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, ListedFile

_LIMIT = 10000
_TIMEOUT_S = 60.0
# A program that ends waits no longer than this for the removal of a folder.
REMOVAL_TIMEOUT_S = 5.0


class RemoteFile(NamedTuple):
    """A file that a job left: its name below the job's folder, with slashes, and its size in bytes."""

    name: str
    size: int


def list_files(connection: HostConnection, folder: str, item: int | None = None) -> list[RemoteFile]:
    """List the files below a folder of the host.

    Args:
        item: Whose folder it is, if that of an item of a group: one that left nothing may have none.
    """
    return [RemoteFile(file.name, file.size) for file in _listed_files(connection, folder, "**", item)]


def _listed_files(connection: HostConnection, folder: str, pattern: str, item: int | None) -> list[ListedFile]:
    if not isinstance(pattern, str):
        hint = 'write one, such as "*.pt" or "results/**"'
        raise ConfigError(f"the pattern is {pattern!r:.60}, not a text", hint=hint)
    try:
        entries = connection.list(folder, pattern, limit=_LIMIT).result(_TIMEOUT_S)
    except HostError as error:
        group = folder.rpartition(f"/{layout.ELEMENTS}/")[0]
        if item is None or error.kind != "missing" or connection.have([group]).result(_TIMEOUT_S) != [True]:
            raise
        return []
    # Imported late, because a job that imports clusterfn does not have the agent's modules.
    from clusterfn.bridge.agent.files import glob_pattern

    # The agent also reads an empty pattern as all files, so both sides must agree here.
    match = glob_pattern(pattern or "**").match
    for entry in entries:
        if not match(entry.name):
            raise ClusterfnError(
                f"the host names a file {entry.name!r}, which {pattern!r} does not match; nothing was fetched",
                hint="its answer cannot be trusted: ask the host's administrator whether it was tampered with",
            )
    return entries


def _reject_large(path: str, size: int) -> None:
    """Reject a file that does not fit into memory, before its first byte comes."""
    free = units.free_memory(swap=True)
    if free is not None and size > free:
        message = f"{path} is {format_size(size)}, and this machine has {format_size(free)} of free memory"
        raise HostError(message, hint="copy it with scp")


# With an end that no file reaches, the agent accepts a file that grows during the read, such as a log.
_GROWS = 1 << 62


def read_text(connection: HostConnection, path: str) -> str:
    """Read a file of the host as text; return "" if it does not exist."""
    return (read_each(connection, [path])[0] or b"").decode("utf-8", "replace")


def read_bytes(connection: HostConnection, path: str) -> bytes:
    """Read a file of the host; raise HostError if it does not exist (`kind` is "missing"), or it cannot be read."""
    out = io.BytesIO()
    connection.get(path, out.write, on_size=partial(_reject_large, path)).result(None)
    return out.getvalue()


def read_each(
    connection: HostConnection, paths: Sequence[str], begins: Sequence[int] = (), timeout_s: float | None = None
) -> list[bytes | None]:
    """Read several files of the host, from these places on, in one round trip; None for one that does not exist."""
    outs = [io.BytesIO() for _ in paths]
    # Send all requests before the first wait.
    replies = [
        connection.get(path, out.write, begin, on_size=partial(_reject_large, path), until=_GROWS)
        for path, begin, out in zip(paths, begins or [0] * len(paths), outs)
    ]
    contents: list[bytes | None] = []
    for reply, out in zip(replies, outs):
        try:
            reply.result(timeout_s)
            contents.append(out.getvalue())
        except HostError as error:
            if error.kind != "missing":
                raise
            contents.append(None)
    return contents


def read_part(connection: HostConnection, path: str, begin: int = 0, size: int | None = None) -> bytes:
    """Read a part of a file, to its end if `size` is None; return b"" if there is no such file."""
    return (read_each(connection, [path], [begin])[0] or b"")[:size]


def read_output(
    connection: HostConnection,
    folder: str,
    stdout: tuple[int, int | None] = (0, None),
    stderr: tuple[int, int | None] = (0, None),
) -> list[tuple[str, bytes]]:
    """Read what an attempt has printed, both streams in the order in which they came.

    Args:
        folder: The attempt's.
        stdout: Where the part that is asked for begins, and its size; None is to the end of the file.

    Returns:
        Pieces, each with its stream.
    """
    names = (layout.STDOUT, layout.STDERR)
    begins = (stdout[0], stderr[0])
    paths = [posixpath.join(folder, name) for name in (*names, layout.STREAM_ORDER)]
    out, err, order = (data or b"" for data in read_each(connection, paths, [*begins, 0]))
    streams = (out[: stdout[1]], err[: stderr[1]])
    return [(names[which], piece) for which, piece in put_in_order(order, streams, begins)]


class CheckpointFolder:
    """The checkpoint of a job, or of one item, as it is on the host now: while the job runs, and after it has ended.

    Args:
        folder: The checkpoint folder there.
        call: What its user has called to get it, for messages.
    """

    def __init__(self, connection: HostConnection, folder: str, call: str) -> None:
        self._connection = connection
        self._call = call
        self.folder = folder

    @property
    @public_api
    def files(self) -> list[RemoteFile]:
        """The files in it; none if the function has saved nothing yet."""
        try:
            return [file for file in list_files(self._connection, self.folder) if not _is_unfinished(file)]
        except HostError as error:
            if error.kind != "missing":
                raise
            return []

    @public_api
    def download(self, pattern: str = "**", to: str | Path = ".") -> list[Path]:
        """Fetch files of it.

        A file that the function is writing may arrive half written: let it write aside and rename, as `save_training`
        does.

        Args:
            pattern: Which, such as "*.pt"; by default all of them.
            to: Folder here; it is made if need be.

        Returns:
            The paths of the files here.

        Raises:
            ClusterfnError: It is empty, or nothing there has such a name; the message lists what there is.
        """
        if not self.files:
            raise NothingMatches(
                "the checkpoint is empty: the function has saved nothing yet",
                hint="the function writes to the folder clusterfn.checkpoint()",
            )
        try:
            return fetch(self._connection, self.folder, pattern, Path(to), leave_out=_is_unfinished)
        except NothingMatches as error:
            error.message = f"the checkpoint has no file that matches {pattern!r}"
            error.hint = f"{self._call}.download() fetches what it has"
            raise

    def __repr__(self) -> str:
        return f"<CheckpointFolder {self.folder}>"


def fetch(
    connection: HostConnection,
    folder: str,
    pattern: str,
    to: Path,
    item: int | None = None,
    on_transfer: Callable[[Transfer], None] = lambda _: None,
    leave_out: Callable[[ListedFile], bool] = lambda _: False,
) -> list[Path]:
    """Fetch the files that match; see `Job.download`, and `list_files`. The name of a folder means its content."""
    files = _listed_files(connection, folder, pattern, item)
    # A pattern without wildcards that matches no file may name a folder, which then means all files below it.
    plain = pattern.rstrip("/")
    if not files and plain and not _GLOB.search(plain):
        files = _listed_files(connection, folder, f"{plain}/**", item)
    files = [file for file in files if not leave_out(file)]
    if not files:
        names = [file.name for file in list_files(connection, folder, item=item)]
        who, called = ("the job", "job.download(") if item is None else (f"item {item}", f"group.download({item}, ")
        call = f'{called}"**", to=".") fetches what it left'
        error = NothingMatches(
            f"{who} left no file that matches {pattern!r}",
            evidence=names[:_NAMED] or ["the function left no files in its folder"],
            hint=call if names else "relative paths in the function start at its own folder",
        )
        error.names = tuple(names)
        raise error
    transfer = Transfer("receiving its files:", size=sum(file.size for file in files))
    on_transfer(transfer)
    return download(connection, folder, files, places.expanded(to), transfer.add)


def _is_unfinished(file: RemoteFile | ListedFile) -> bool:
    """Whether it has the name under which `save_training` writes, before it renames what is complete."""
    return _ASIDE.fullmatch(PurePosixPath(file.name).name) is not None


_GLOB = re.compile(r"[*?[]")
_ASIDE = re.compile(r"\..+\.clusterfn-[a-z0-9_]{8}")
_NAMED = 20


class NothingMatches(ClusterfnError):
    """The job left no file of that name; `names` are those that it left."""

    names: tuple[str, ...] = ()


def not_fetched(error: Exception, pattern: str, job_id: str, item: int | None = None) -> str:
    """Return a line about `outputs=` that was not fetched: what there is, and what fetches it.

    Args:
        item: Whose files they are, if those of an item of a group.
    """

    def fetching(glob: str = "**") -> str:
        if item is None:
            return f'clusterfn pull {job_id[:SHORT]} --only "{glob}"'
        return f'clusterfn.attach("{job_id}").download({item}, "{glob}", to=".")'

    what = f"{'' if item is None else f'item {item}: '}outputs={pattern!r}"
    if not isinstance(error, NothingMatches):
        why = error.message if isinstance(error, ClusterfnError) else error
        return f"{what} was not fetched: {why}; try again: {fetching(pattern)}"
    if not error.names:
        whose = "the job" if item is None else "the item"
        return f"{what} matches nothing: the function left no files in {whose}'s own folder"
    left = _listed(error.names[:_NAMED], len(error.names))
    return f"{what} matches nothing; the job left {left}; fetch them: {fetching()}"


def left_behind(left: Sequence[Sequence[Any]], host: str, job_id: str) -> str:
    """Return a line about files that no `outputs=` asked for: outcome.json's `left`, at most `_NAMED` of them."""
    names = [str(name) for name, _ in left]
    count = counted(len(names), "file") if len(names) < _NAMED else f"{_NAMED} files or more"
    them = "it" if len(names) == 1 else "them"
    return f"left {count} on {host}: {_listed(names, len(names))}; clusterfn pull {job_id[:SHORT]} fetches {them}"


def _listed(names: Sequence[str], count: int) -> str:
    first = ", ".join(name if name.isprintable() else ascii(name) for name in names[:3])
    return f"{first} and {count - 3} more" if count > 3 else first


def remove_folder(connection: HostConnection, folder: str) -> None:
    """Remove the folder of a job that never was, also where the program ends at once. Ignore a lost connection."""
    with contextlib.suppress(HostError):
        exit_flush.await_at_exit(connection.run(removal_command(folder)), REMOVAL_TIMEOUT_S)
