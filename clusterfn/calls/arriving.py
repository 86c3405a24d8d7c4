"""A value on its way here. Knows what its outcome announces, and what may come before that. Asks no host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterfn import errors
from clusterfn.calls import outcome
from clusterfn.calls.outcome import JobLocation
from clusterfn.config import units
from clusterfn.hosts import landing, serialization
from clusterfn.hosts.landing import Landing, Value

_SMALL = 1 << 20  # bytes for which any machine has room
_LONGEST_LINE = 1 << 20  # of the first line of a value that comes early


class Arriving:
    """As many bytes as the outcome announces, and no more than this machine has room for.

    A large value may begin to come while the host still writes it. Its first line then says how large it will be, and
    the outcome is compared with that, and with the checksum of what came.

    Args:
        place: Where the job ran.
    """

    def __init__(self, place: JobLocation) -> None:
        self._place = place
        self._size = 0
        self._crc: int | None = None  # that the outcome has
        self._small = bytearray()
        self._landing: Landing | None = None
        self._is_early = self._is_void = False

    @property
    def value(self) -> Value | None:
        """What has come so far; None if it is to be fetched, because what came early is not what was published."""
        if self._is_void:
            return None
        value = self._landing.value() if self._landing is not None else self._small
        if self._is_early and (len(value) != self._size or getattr(value, "crc", None) != self._crc):
            return None
        return value

    def begin_early(self, again: bool) -> None:
        """Take note that bytes come before the outcome; `again`: from the beginning, and all others are void."""
        if again:
            self._small, self._landing, self._is_void = bytearray(), None, False
        self._is_early = True

    def announce(self, content: bytes) -> None:
        """Take the content of outcome.json, which comes before the value, or before the end of it.

        Raises:
            ResultError: The value does not fit on this machine.
        """
        try:
            self.expect(outcome.read(content))
        except ValueError:  # reported when the outcome is taken
            self._size, self._is_void = 0, self._is_early

    def expect(self, told: Mapping[str, Any]) -> None:
        """Take the outcome itself; raises as `announce`."""
        about = told.get("value") or {}
        self._size, self._crc = about.get("size") or 0, about.get("crc")
        if self._landing is not None:
            self._is_void = self._landing.size != self._size
        elif len(self._small) > self._size:
            self._is_void = True
        else:
            came, self._small, self._is_early = bytes(self._small), bytearray(), self._is_void
            self._make_room(self._size)
            self.take(came)
        if self._is_void:
            self._landing = None

    def take(self, piece: bytes) -> None:
        """Take a further piece of the value.

        Raises:
            ResultError: That is more than was announced.
        """
        if self._is_early and self._landing is None:
            piece = self._take_first_line(piece)
        if self._is_void or not (self._size or self._is_early):  # it failed, and what it left is not read
            return
        if self._landing is not None:
            if self._landing.came + len(piece) > self._landing.size:
                self._reject_more(self._landing.size)
            self._landing.take(piece)
        elif not self._is_early:
            if len(self._small) + len(piece) > self._size:
                self._reject_more(self._size)
            self._small += piece

    def _take_first_line(self, piece: bytes) -> bytes:
        """Find in the first line how much will come; return what is to be taken then."""
        if self._is_void:
            return b""
        container = serialization.part("container")
        self._small += piece
        end = self._small.find(b"\n") + 1
        if not end and len(self._small) <= _LONGEST_LINE:
            return b""
        try:
            size = container.size_by_header(bytes(self._small[:end]))
        except container.Damaged:  # the outcome decides what that was
            size = 0
        came, self._small = bytes(self._small), bytearray()
        if size < len(came):
            self._is_void = True
            return b""
        self._make_room(size)
        return came

    def _make_room(self, size: int) -> None:
        """Prepare for so many bytes.

        Raises:
            ResultError: They fit neither into memory nor on the disk.
        """
        if size <= _SMALL:
            return
        free = units.free_memory(swap=True)
        folder = None
        if free is not None and size > free:
            if not self._place.results.data_only:  # a host that is not trusted may not fill the disk either
                folder = landing.folder_for(size)
            if folder is None:
                raise self._refused(
                    f"the value is {size / 1e9:.1f} GB, and this machine has {free / 1e9:.1f} GB of free memory",
                    f"call clusterfn.attach({self._place.job!r}).result() on a machine with more memory, or write a "
                    "file in the function and fetch it with outputs=",
                )
        self._landing = Landing(size, folder)

    def _reject_more(self, size: int) -> None:
        raise self._refused(
            f"the value is damaged: more bytes arrived than the {size} that were written",
            f"check what else writes to {self._place.folder} on {self._place.host}",
        )

    def _refused(self, message: str, hint: str) -> errors.ResultError:
        place = self._place
        return errors.ResultError(message, host=place.host, job=place.job, stage="result", hint=hint, log=place.folder)
