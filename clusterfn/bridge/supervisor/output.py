"""Output of the function: copy what it prints into files, note the order, and list what it leaves in its folder."""

import errno
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Optional

_CHUNK = 65536
_TAIL = 16384
_DRAIN = 4 << 20
_MOST_NOTED = 1 << 20
_SIZES = re.compile(rb"^(\d{1,18}) (\d{1,18})$", re.MULTILINE)


class StreamOrder:
    """Note in which order two streams come: a line with the sizes of both files each time that the other one grows.

    A job that prints to one stream alone has no such file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._sizes = [0, 0]
        self._last: "Optional[int]" = None
        # These lines could not be written yet: the folder is made later, or the disk is full.
        self._waiting = bytearray()
        self._noted = 0

    def begin(self, which: int, size: int) -> None:
        """Take the size of a file that exists: items of an element share it."""
        self._sizes[which] = size

    def grow(self, which: int, count: int) -> None:
        """Take that a stream, 0 for stdout or 1 for stderr, has got `count` more bytes."""
        if self._last not in (None, which) and self._noted < _MOST_NOTED:
            line = b"%d %d\n" % (self._sizes[0], self._sizes[1])
            self._waiting += line
            self._noted += len(line)
            self.write()
        self._last = which
        self._sizes[which] += count

    def write(self) -> None:
        """Write the lines that are not in the file yet, if it can be written."""
        if not self._waiting:
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                del self._waiting[: os.write(file, self._waiting)]
            finally:
                os.close(file)
        except OSError:
            # The streams are kept without their order.
            return


def put_in_order(
    order: bytes, streams: "tuple[bytes, bytes]", begins: "tuple[int, int]" = (0, 0)
) -> "Iterator[tuple[int, bytes]]":
    """Yield the pieces of two streams in the order in which they came, each with 0 for stdout or 1 for stderr.

    Args:
        order: What `StreamOrder` has written.
        streams: What was read of both files.
        begins: Where that begins in each file.
    """
    # The function may have written anything into the file.
    points = _SIZES.findall(order)
    done = [0, 0]
    for point in [*points, [b"%d" % (begin + len(data)) for begin, data in zip(begins, streams)]]:
        for which, (end, begin, data) in enumerate(zip(point, begins, streams)):
            piece = data[done[which] : max(done[which], int(end) - begin)]
            if piece:
                done[which] += len(piece)
                yield which, piece


class Pump:
    """One stream.

    Args:
        path: The file that gets what comes.
        limit: How many bytes are kept.
        is_late: Whether the file is made only when something has come.
        order: Gets how much has come of it, as stream `which`.
        which: 0 for stdout, 1 for stderr.

    Attributes:
        fd: The pipe's reading end; -1 once it has ended.
        tail: The last bytes that came, kept or not.
        full: The error that writing met, if any.
        on_kept: Gets what was written to the file; None if no client listens.
    """

    def __init__(
        self,
        fd: int,
        path: str,
        limit: int,
        is_late: bool = False,
        order: "Optional[StreamOrder]" = None,
        which: int = 0,
    ) -> None:
        self.fd = fd
        self.tail = b""
        self.full: "Optional[OSError]" = None
        self.on_kept: "Optional[Callable[[bytes], None]]" = None
        self._path, self._limit = path, limit
        self._order, self._which = order, which
        self._kept = self._lost = 0
        self._file = -1
        if not is_late:
            self._open()
            if order is not None:
                order.begin(which, os.fstat(self._file).st_size)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    @property
    def seen(self) -> int:
        """Return how many bytes have come, kept or not."""
        return self._kept + self._lost

    def move(self) -> bool:
        """Move what is there, at most one chunk; False if there was nothing."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.fd)
            self.fd = -1
            return False
        self.tail = (self.tail + data)[-_TAIL:]
        self._keep(data)
        return True

    def drain(self) -> None:
        """Move everything that has been written so far; a child that never stops writing does not keep us."""
        moved = 0
        while self.fd >= 0 and moved < _DRAIN and self.move():
            moved += _CHUNK

    def _keep(self, data: bytes) -> None:
        wanted = data[: max(0, self._limit - self._kept)]
        written = 0
        try:
            if self._file < 0 and wanted:
                # The function may have removed the folder.
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                self._open()
            while written < len(wanted):
                written += self._write(wanted[written:])
        except OSError as error:
            self.full = error
            # What follows would come after a gap.
            self._limit = 0
        self._kept += written
        if written:
            self._tell(wanted[:written])
        self._lost += len(data) - written

    def _write(self, data: bytes) -> int:
        """Write what the file takes; open it again if its server no longer knows it as it is open (a failover)."""
        try:
            return os.write(self._file, data)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        again = os.open(self._path, os.O_RDWR | os.O_APPEND)
        os.dup2(again, self._file, inheritable=False)
        os.close(again)
        return os.write(self._file, data)

    def close(self) -> "Optional[str]":
        """End the file with a line about what is missing, and return that line."""
        if self._order is not None:
            self._order.write()
        if not self._lost:
            return None
        why = os.strerror(self.full.errno or 0) if self.full else "log_limit_bytes is %d" % self._limit
        line = "[clusterfn: %d more bytes were not kept: %s]" % (self._lost, why)
        data = ("\n%s\n" % line).encode()
        try:
            data = data[: os.write(self._file, data)]
        except OSError:
            # The disk is still full, and the line is in the outcome.
            return line
        self._tell(data)
        return line

    def _tell(self, kept: bytes) -> None:
        if self._order is not None:
            self._order.grow(self._which, len(kept))
        if self.on_kept is not None:
            self.on_kept(kept)

    def forget(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        if self.fd >= 0:
            os.close(self.fd)

    def restore(self) -> None:
        """Write the file again: the function removed it, perhaps before the file was made."""
        if self._file >= 0 and not os.path.exists(self._path):
            copy(self._file, self._path)


def copy(source: int, path: str) -> None:
    """Copy an open file, whose name is gone, to `path`."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        offset = 0
        while True:
            data = os.pread(source, 1 << 20, offset)
            if not data:
                os.fsync(target)
                return
            offset += os.write(target, data)
    finally:
        os.close(target)


_NAMED = 20
_LOOKED_AT = 200


def list_files_left(folder: str) -> "list[list[Any]]":
    """Names and sizes of the first files below a folder; what would take long to find is left out.

    It runs between the function's end and its result, so it looks at few entries, and at links and
    Python's bytecode not at all.
    """
    found: "list[list[Any]]" = []
    waiting = [""]
    looked = 0
    while waiting:
        prefix = waiting.pop(0)
        try:
            with os.scandir(os.path.join(folder, prefix)) as entries:
                for entry in entries:
                    looked += 1
                    if len(found) == _NAMED or looked > _LOOKED_AT:
                        return sorted(found)
                    if entry.is_file(follow_symlinks=False):
                        found.append([prefix + entry.name, entry.stat(follow_symlinks=False).st_size])
                    elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                        waiting.append(prefix + entry.name + "/")
        except OSError:
            # The folder was removed, perhaps by the function.
            continue
    return sorted(found)
