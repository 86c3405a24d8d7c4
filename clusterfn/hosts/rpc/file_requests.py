"""Requests that upload and download files. After a reconnect, each resumes where it stopped."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

from clusterfn.errors import HostError
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.frames import CHUNK, Header, pack
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import MalformedAnswer, OpenRequest, SimpleRequest, Sink, T, number

# Uploads of at least so many bytes are resumed after a reconnect. Smaller ones are sent again from the start.
RESUMED_FROM = 1 << 20


class FileHead(NamedTuple):
    """The first bytes of a local file, which may grow. It is opened when it is sent, and never in memory as a whole."""

    path: str
    size: int


Data = Union[bytes, memoryview, Path, FileHead]
SendAgain = Callable[["list[str]"], Coroutine[Any, Any, Union[HostError, None]]]


class UploadRequest(SimpleRequest[T]):
    """A request followed by the bytes of one or more sources, which the host stores whole or not at all.

    A large one has a number by which a later agent finds what the one before has written: after a reconnect the host
    says from which byte on it is to come.
    """

    def __init__(
        self,
        fields: Header,
        read: Callable[[Header, bytes], T],
        sources: Sequence[Data],
        after: Sequence[Reply[Any]] = (),
        send_again: SendAgain | None = None,
    ) -> None:
        super().__init__("put", fields, read, after=after)
        self._send_again = send_again
        self._sources = sources
        self._sizes = [size_of(source) for source in sources]
        self.reply.size = sum(self._sizes)
        self._sendings = 0
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
            if not is_expected or self._send_again is None:
                raise MalformedAnswer(f"lacking: {ascii(paths)[:80]}")
            loop.begin(self._complete(paths, self._send_again))
            return
        if "resumed" not in self.fields:
            raise MalformedAnswer("a place to continue at, of what was not sent before")
        self.upload(self._chunks(number(header, "at", below=(self.reply.size or 0) + 1)))

    async def _complete(self, paths: list[str], send_again: SendAgain) -> None:
        """Have what the host lacks sent again. Then the host looks again, or ends the request with the error."""
        error = await send_again(paths)
        failed = {} if error is None else {"failed": {"kind": error.kind or "io", "message": error.message}}
        self.upload(iter([pack({"id": self.id, "do": "chunk", **failed})]))

    def _chunks(self, begin: int) -> Iterator[bytes]:
        """Yield the frames from a byte on. `pack` copies each byte once, and that is all."""
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
        return pack({"id": self.id, "do": "chunk", **more}, *parts)

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
    if isinstance(source, Path):
        source = FileHead(str(source), size_of(source))
    if not isinstance(source, FileHead):
        for start in range(begin, len(source), CHUNK):
            yield source[start : start + CHUNK]
        return
    left = source.size - begin
    with open(source.path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path takes as long as a small file
        file.seek(begin)
        while piece := file.read(min(CHUNK, left)):
            left -= len(piece)
            yield piece


def size_of(source: Data) -> int:
    """Return how many bytes a source has now."""
    if isinstance(source, Path):
        return source.stat().st_size
    return source.size if isinstance(source, FileHead) else len(source)


class GetRequest(OpenRequest[int]):
    """A file's bytes; a second sending begins where the first one broke off."""

    def __init__(
        self, path: str, sink: Sink, offset: int, on_size: Callable[[int], Any] | None, until: int | None = None
    ) -> None:
        part = {} if until is None else {"until": until}
        super().__init__("get", {"path": path, "offset": offset, **part})
        self._write = sink
        self._on_size = on_size

    def header(self, still_open: Callable[[int], bool]) -> Header:
        # A file may grow between two tries, and each agent announces the size that it sees.
        self.reply.size = None
        return super().header(still_open)

    def take(self, header: Header, body: bytes) -> None:
        if self.reply.size is None:
            self.reply.size = number(header, "size")
            if "of" in header:
                # Send this identity of the file with a retry: a later agent must
                # not append bytes of another file of the same name.
                self.fields["of"] = header["of"]
            if self.reply.size > self.fields.get("until", self.reply.size):
                raise MalformedAnswer(f"size: {self.reply.size}, of a part that ends at {self.fields['until']}")
            if self._on_size is not None:
                self._on_size(self.reply.size)
        if body and self.fields["offset"] + len(body) > self.reply.size:
            raise MalformedAnswer(f"more bytes than the {self.reply.size} that it announced")
        if body:
            self._write(body)
        self.fields["offset"] += len(body)
        self.reply.moved += len(body)

    def finish(self, header: Header, body: bytes) -> None:
        try:
            self.take(header, body)
        except MalformedAnswer:
            raise
        except BaseException as error:  # noqa: BLE001 - the caller's own function: its error goes to its reply
            self.fail(error)
        else:
            super().finish(header, body)

    def value(self, header: Header, body: bytes) -> int:
        """Return the offset that was reached: that of its end."""
        reached: int = self.fields["offset"]
        if reached < (self.reply.size or 0):
            raise MalformedAnswer(f"its end, after {reached} bytes of {self.reply.size}")
        return reached
