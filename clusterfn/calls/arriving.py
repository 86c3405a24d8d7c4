"""A value on its way here. Knows what its outcome announces, and what may come before that. Asks no host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.calls import outcome
from clusterfn.calls.outcome import JobLocation
from clusterfn.config import units
from clusterfn.errors import ResultError
from clusterfn.hosts import landing, serialization
from clusterfn.hosts.landing import Landing, Value

RECEIVING = "receiving its value:"
# Any machine has room for this many bytes. The first line of a value that comes early is no longer than that.
_SMALL = 1 << 20


class Arriving:
    """As many bytes as the outcome announces, and no more than this machine has room for.

    A large value may begin to come while the host still writes it. Its first line then says how large it will be, and
    the outcome is compared with that, and with the checksum of what came. Before the outcome, nothing here is an error:
    the job has not ended yet, and what does not fit, or makes no sense, is fetched later.

    Args:
        place: Where the job ran.

    Attributes:
        kind: Of the outcome, once that has been read; "" before.
        published: The outcome itself, if `announce` has read it.
    """

    def __init__(self, place: JobLocation) -> None:
        self.kind = ""
        self.published: dict[str, Any] | None = None
        self._place = place
        self._size = 0
        # The checksum that the outcome announces.
        self._crc: int | None = None
        self._small = bytearray()
        self._landing: Landing | None = None
        self._is_early = self._is_announced = self._is_void = False

    @property
    def value(self) -> Value | None:
        """What has come so far; None if it is to be fetched, because what came early is not what was published.

        Raises:
            ResultError: This machine cannot map it.
        """
        if self._is_void:
            return None
        try:
            value = self._landing.value() if self._landing is not None else self._small
        except OSError as error:
            raise self._no_room(error) from error
        if self._is_early and (len(value) != self._size or getattr(value, "crc", None) != self._crc):
            return None
        return value

    def take(self) -> Value | None:
        """Return what has come, as `value`, and let go of it."""
        value = self.value
        self.drop()
        return value

    def drop(self) -> None:
        """Let go of what has come: a request that has ended may be kept with its job."""
        self._small, self._landing, self._is_void = bytearray(), None, True

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
            self.published = outcome.read(content)
        except ValueError:
            # The same damage is reported when the outcome is taken.
            self.published = None
            self._size, self._is_announced, self._is_void = 0, True, self._is_early
        else:
            self.expect(self.published)

    def expect(self, fields: Mapping[str, Any]) -> None:
        """Take the outcome itself; raises as `announce`."""
        about = fields.get("value") or {}
        self.kind = fields.get("kind", "")
        self._size, self._crc = about.get("size") or 0, about.get("crc")
        self._is_announced = True
        early, self._small = bytes(self._small), bytearray()
        if self._landing is None:
            self._make_room(self._size)
        if len(early) > self._size or (self._landing is not None and self._landing.size != self._size):
            self._is_void = True
        if self._is_void:
            self._landing = None
        elif early:
            self.write(early)

    def write(self, piece: bytes) -> None:
        """Take a further piece of the value.

        Raises:
            ResultError: That is more than was announced, or it fits nowhere.
        """
        if self._is_void or not (self._size if self._is_announced else self._is_early):
            # The value has failed, and what is left of it is not read.
            return
        try:
            self._keep(piece)
            if not self._is_announced and self._landing is None:
                self._make_room_early()
        except ResultError:
            if self._is_announced:
                raise
            self.drop()

    def _keep(self, piece: bytes) -> None:
        received, most = len(self._small), self._size if self._is_announced else _SMALL
        if self._landing is not None:
            received, most = self._landing.came, self._landing.size
        if received + len(piece) > most:
            raise self._refused(
                f"the value is damaged: more bytes arrived than the {most} that were written",
                f"check what else writes to {self._place.folder} on {self._place.host}",
            )
        if self._landing is None:
            self._small += piece
            return
        try:
            self._landing.take(piece)
        except OSError as error:
            raise self._no_room(error) from error

    def _make_room_early(self) -> None:
        """Find in the first line how much will come, and prepare for that."""
        container = serialization.part("container")
        end = self._small.find(b"\n") + 1
        if not end:
            return
        try:
            self._make_room(container.size_by_header(bytes(self._small[:end])))
        except container.Damaged:
            # The outcome decides later what these bytes were.
            self.drop()
        if self._landing is not None:
            early, self._small = bytes(self._small), bytearray()
            self._keep(early)

    def _make_room(self, size: int) -> None:
        """Prepare for so many bytes.

        Raises:
            ResultError: They fit neither into memory nor on the disk.
        """
        if size <= _SMALL:
            return
        free, folder = units.free_memory(swap=True), None
        if free is not None:
            # Other values that are on their way have room reserved for them, which the system still counts as free.
            free -= landing.awaited()
        if free is not None and size > free:
            # A host that is not trusted may fill neither the memory nor the disk.
            if not self._place.results.data_only:
                folder = landing.folder_for(size)
            if folder is None:
                raise self._refused(
                    f"the value is {format_size(size)}, and this machine has {format_size(max(0, free))} of free"
                    " memory",
                    self._elsewhere(),
                )
        try:
            self._landing = Landing(size, folder)
        except OSError as error:
            raise self._no_room(error) from error

    def _no_room(self, error: OSError) -> ResultError:
        return self._refused(f"this machine has no room for the value: {error}", self._elsewhere())

    def _elsewhere(self) -> str:
        job = self._place.job
        return (
            f"call clusterfn.attach({job!r}).result() on a machine with more memory, or write a file in the function"
            " and fetch it with outputs="
        )

    def _refused(self, message: str, hint: str) -> ResultError:
        place = self._place
        return ResultError(message, host=place.host, job=place.job, stage="result", hint=hint, log=place.folder)
