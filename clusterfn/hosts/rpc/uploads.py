"""Requests that send files: whole or not at all, and from where they broke off after a reconnect."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from clusterfn.errors import HostError
from clusterfn.hosts.rpc.frames import CHUNK, Header, pack
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import MalformedAnswer, SimpleRequest, T, number

if TYPE_CHECKING:
    from clusterfn.bridge.agent.compression import Compressor

# Uploads of at least so many bytes are resumed after a reconnect. Smaller ones are sent again from the start.
RESUMED_FROM = 1 << 20
# A path is opened when it is sent, so the file is never in memory as a whole.
Data = Union[bytes, memoryview, Path]
Lacking = Callable[["list[str]", Callable[[Union[HostError, None]], None]], Any]


class UploadRequest(SimpleRequest[T]):
    """A request followed by the bytes of one or more sources.

    A large one has a number by which a later agent finds what the one before has written: after a reconnect the host
    says from which byte on it is to come.
    """

    def __init__(self, fields: Header, read: Callable[[Header, bytes], T], sources: Sequence[Data],
                 after: Sequence[Reply[Any]] = (), on_lacking: Lacking | None = None) -> None:  # fmt: skip
        super().__init__("put", fields, read, after=after)
        self._on_lacking = on_lacking
        self._sources = sources
        self._sizes = [size_of(source) for source in sources]
        self.reply.size = sum(self._sizes)
        self._sendings = 0
        self._compressor: Compressor | None = None
        if self.reply.size >= RESUMED_FROM:
            # The number is random, because other programs of the same user may upload to the same host.
            fields["resume"] = secrets.randbits(48)

    def header(self, still_open: Callable[[int], bool]) -> Header:
        if self._sendings and "resume" in self.fields:
            self.fields["resumed"] = self._sendings
        self._sendings += 1
        return super().header(still_open)

    def chunks(self) -> Iterator[bytes] | None:
        return None if "resumed" in self.fields else self._chunks(0)

    def take(self, header: Header, body: bytes) -> None:
        if "lacking" in header:
            paths = header["lacking"]
            is_expected = isinstance(paths, list) and set(map(str, paths)) <= set(self.fields.get("needs", ()))
            if not is_expected or self._on_lacking is None:
                raise MalformedAnswer(f"lacking: {ascii(paths)[:80]}")
            self._on_lacking(paths, self._go_on)
            return
        if "resumed" not in self.fields:
            raise MalformedAnswer("a place to continue at, of what was not sent before")
        self.upload(self._chunks(number(header, "at", below=(self.reply.size or 0) + 1)))

    def _go_on(self, error: HostError | None) -> None:
        """Have the host look again, or end the request with the error for which something was not sent again."""
        failed = {} if error is None else {"failed": {"kind": error.kind or "io", "message": error.message}}
        self.upload(iter([pack({"id": self.id, "do": "chunk", **failed})]))

    def _chunks(self, begin: int) -> Iterator[bytes]:
        """Yield the frames from a byte on. On fast links `pack` copies each byte once, and that is all."""
        if "resume" in self.fields:
            # Imported late, because few uploads are large enough.
            from clusterfn.bridge.agent.compression import Compressor

            self._compressor = Compressor(self.taken)
        held: list[bytes | memoryview] = []
        room, self.reply.moved = CHUNK, begin
        for piece in (memoryview(piece) for source, at in self._rest(begin) for piece in pieces_of(source, at)):
            while len(piece) > room:
                self.reply.moved += CHUNK
                yield self._chunk(*held, piece[:room])
                held, room, piece = [], CHUNK, piece[room:]
            held.append(piece)
            room -= len(piece)
        self.reply.moved += CHUNK - room
        yield self._chunk(*held, last=True)

    def _chunk(self, *parts: bytes | memoryview, **more: Any) -> bytes:
        header = {"id": self.id, "do": "chunk", **more}
        small = self._compressor.compress(*parts) if self._compressor is not None else None
        return pack(header, *parts) if small is None else pack({**header, "zlib": True}, small)

    def _rest(self, begin: int) -> Iterator[tuple[Data, int]]:
        """Yield the sources that are left, and from which byte on."""
        for source, size in zip(self._sources, self._sizes):
            if begin and begin >= size:
                begin -= size
                continue
            yield source, begin
            begin = 0


def pieces_of(source: Data, begin: int = 0) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a source from one on, a chunk at a time."""
    if not isinstance(source, Path):
        for start in range(begin, len(source), CHUNK):
            yield source[start : start + CHUNK]
        return
    with source.open("rb", buffering=0) as file:
        file.seek(begin)
        while piece := file.read(CHUNK):
            yield piece


def size_of(source: Data) -> int:
    """Return how many bytes a source has now."""
    return source.stat().st_size if isinstance(source, Path) else len(source)
