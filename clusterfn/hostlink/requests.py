"""Open requests: what each sends, what it does with answers, and what it sends again after a reconnect.

A request is made by `host`, registered with the link, and ends exactly once. `take`, `finish` and `fail` are called by
the link's reader thread; `header` and `chunks` by whoever connects or writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, Union

from clusterfn.hostlink.frames import CHUNK, Header, pack
from clusterfn.hostlink.reply import Reply

T = TypeVar("T")
Sink = Union[Callable[[bytes], Any], BinaryIO]


@dataclass(frozen=True)
class Part:
    """A part of a file: `size` bytes from `offset` on. Opened when it is sent, and not kept in memory."""

    path: Path
    offset: int
    size: int


Data = Union[bytes, memoryview, Path, Part]


class Request(Generic[T]):
    """One open request. Subclasses say how an answer is read and what a second sending leaves out."""

    def __init__(self, do: str, fields: Header, body: bytes = b"", after: Sequence[Reply[Any]] = ()) -> None:
        self.do = do
        self.fields = fields
        self.body = body
        self.after = tuple(reply.id for reply in after)
        self.cancel: Callable[[], None] = lambda: None
        self.reply = self.make_reply()

    def make_reply(self) -> Reply[T]:
        return Reply(lambda: self.cancel())

    @property
    def id(self) -> int:
        return self.reply.id

    def register(self, number: int, host: str, answering: AbstractSet[int] = frozenset()) -> None:
        """It is to be sent to this host, by this number; these threads bring the answer."""
        what = self.fields.get("path") or next(iter(self.fields.get("argv", ())), "")
        self.reply.register(number, host, f"{self.do} {what}".rstrip(), answering)

    def header(self, still_open: Callable[[int], bool]) -> Header:
        """The request as it is to be sent now, naming only requests that are still open."""
        after = [number for number in self.after if still_open(number)]
        return {**self.fields, "id": self.id, "do": self.do, **({"after": after} if after else {})}

    def chunks(self) -> Iterator[bytes] | None:
        """Frames that follow the request, if it is a transfer; from the start."""
        return None

    def resend(self) -> bool:
        """Whether a new agent is to be asked; False: it has been ended here instead."""
        return True

    def take(self, header: Header, body: bytes) -> None:
        """An answer before the last."""

    def finish(self, header: Header, body: bytes) -> None:
        """The last answer."""
        self.reply.resolve(self.value(header, body))

    def value(self, header: Header, body: bytes) -> T:
        raise NotImplementedError

    def fail(self, error: BaseException, header: Header | None = None) -> None:
        self.reply.reject(error)


class Plain(Request[T]):
    """One answer, read by a function."""

    def __init__(
        self,
        do: str,
        fields: Header,
        read: Callable[[Header, bytes], T],
        body: bytes = b"",
        after: Sequence[Reply[Any]] = (),
    ) -> None:
        super().__init__(do, fields, body, after)
        self._read = read

    def value(self, header: Header, body: bytes) -> T:
        return self._read(header, body)


class Upload(Plain[T]):
    """A request followed by the bytes of one or more sources."""

    def __init__(self, do: str, fields: Header, read: Callable[[Header, bytes], T], sources: Sequence[Data],
                 after: Sequence[Reply[Any]] = ()) -> None:  # fmt: skip
        super().__init__(do, fields, read, after=after)
        self._sources = sources
        self.reply.size = sum(map(size_of, sources))

    def chunks(self) -> Iterator[bytes]:
        pieces = (piece for source in self._sources for piece in pieces_of(source))
        held, self.reply.moved = b"", 0
        for piece in pieces:
            held += piece
            if len(held) > CHUNK:
                self.reply.moved += CHUNK
                yield pack({"id": self.id, "do": "chunk"}, held[:CHUNK])
                held = held[CHUNK:]
        self.reply.moved += len(held)
        yield pack({"id": self.id, "do": "chunk", "last": True}, held)


def pieces_of(source: Data) -> Iterator[bytes]:
    """The bytes of a source, a chunk at a time."""
    if isinstance(source, Path):
        source = Part(source, 0, sys.maxsize)  # as long as it is by then
    if not isinstance(source, Part):
        for start in range(0, len(source), CHUNK):
            yield bytes(source[start : start + CHUNK])
        return
    left = source.size
    with source.path.open("rb") as file:
        file.seek(source.offset)
        while piece := file.read(min(CHUNK, left)):
            left -= len(piece)
            yield piece


def size_of(source: Data) -> int:
    """How many bytes a source has now."""
    if isinstance(source, Part):
        return source.size
    return source.stat().st_size if isinstance(source, Path) else len(source)


def writer_of(sink: Sink) -> Callable[[bytes], Any]:
    """A sink as a function."""
    return sink if callable(sink) else sink.write


class Get(Request[int]):
    """A file's bytes; a second sending begins where the first one broke off."""

    def __init__(self, path: str, sink: Sink, offset: int, after: Sequence[Reply[Any]]) -> None:
        super().__init__("get", {"path": path, "offset": offset}, after=after)
        self._write = writer_of(sink)

    def take(self, header: Header, body: bytes) -> None:
        self._write(body)
        self.fields["offset"] += len(body)
        self.reply.moved += len(body)

    def value(self, header: Header, body: bytes) -> int:
        return int(self.fields["offset"])


class Follow(Get):
    """A file's bytes as they come."""

    def __init__(self, path: str, on_data: Callable[[bytes], Any], offset: int, after: Sequence[Reply[Any]]) -> None:
        super().__init__(path, on_data, offset, after)
        self.do = "follow"


class Wait(Request[bytes]):
    """A file that will come, with the ones that belong to it."""

    def __init__(
        self,
        path: str,
        files: Sequence[tuple[str, Sink]],
        drain: Sequence[Reply[Any]],
        after: Sequence[Reply[Any]],
    ) -> None:
        names = [name for name, _ in files]
        super().__init__("wait", {"path": path, "with": names, "offsets": [0] * len(names)}, after=after)
        self._writers = [writer_of(sink) for _, sink in files]
        self._drain = tuple(reply.id for reply in drain)

    def header(self, still_open: Callable[[int], bool]) -> Header:
        drain = [number for number in self._drain if still_open(number)]
        return {**super().header(still_open), "drain": drain}

    def take(self, header: Header, body: bytes) -> None:
        index = header["file"]
        self._writers[index](body)
        self.reply.moved, self.reply.size = self.reply.moved + len(body), header.get("size")
        self.fields["offsets"][index] += len(body)

    def value(self, header: Header, body: bytes) -> bytes:
        return body


class Still(Request[None]):
    """Word whenever a file has stopped changing."""

    def __init__(self, path: str, silent_s: float, on_silent: Callable[[], Any], after: Sequence[Reply[Any]]) -> None:
        super().__init__("still", {"path": path, "silent_s": silent_s}, after=after)
        self._on_silent = on_silent

    def take(self, header: Header, body: bytes) -> None:
        self._on_silent()

    def value(self, header: Header, body: bytes) -> None:
        return None


@dataclass(frozen=True)
class Spawned:
    """A process that was started on the host; with `starttime` (None where unknown) its pid names it for ever."""

    pid: int
    starttime: int | None


class SpawnReply(Reply[Spawned]):
    """The reply to `spawn`.

    Attributes:
        exited: The raw wait status, once it has ended; None if the agent that knew it is gone.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        super().__init__(cancel)
        self.exited: Reply[int | None] = Reply(cancel)

    def register(self, number: int, host: str, asked: str, answering: AbstractSet[int] = frozenset()) -> None:
        super().register(number, host, asked, answering)
        self.exited.register(number, host, f"the end of {asked}", answering)


class Spawn(Request[Spawned]):
    """A detached process. Once its pid is known it is never started again."""

    reply: SpawnReply

    def make_reply(self) -> SpawnReply:
        return SpawnReply(lambda: self.cancel())

    def take(self, header: Header, body: bytes) -> None:
        self.reply.resolve(Spawned(header["pid"], header["starttime"]))

    def finish(self, header: Header, body: bytes) -> None:
        self.reply.exited.resolve(header["status"])

    def resend(self) -> bool:
        if self.reply.done():
            self.reply.exited.resolve(None)
            return False
        return True

    def fail(self, error: BaseException, header: Header | None = None) -> None:
        self.reply.reject(error)
        self.reply.exited.reject(error)


@dataclass(frozen=True)
class Look:
    """One look of a `repeat`.

    Attributes:
        rc: Exit status; negative: the signal; None: killed because it took too long.
        same: Whether everything is as at the look before.
        age_s: How old the answer is: another process of this user may have asked.
    """

    rc: int | None
    out: str
    err: str
    same: bool = False
    age_s: float = 0.0


class Repeating(Reply[None]):
    """The reply to `repeat`."""

    def stop(self) -> None:
        """End it; without waiting, and harmless when it has ended."""
        self.cancel()


class Repeat(Request[None]):
    """A program at intervals."""

    reply: Repeating

    def make_reply(self) -> Repeating:
        return Repeating(lambda: self.cancel())

    def __init__(self, fields: Header, on_look: Callable[[Look], Any], after: Sequence[Reply[Any]]) -> None:
        super().__init__("repeat", fields, after=after)
        self._on_look = on_look
        self._texts = ("", "")

    def take(self, header: Header, body: bytes) -> None:
        if not header["same"]:
            out, err = body[: header["out"]], body[header["out"] :]
            self._texts = (out.decode(errors="replace"), err.decode(errors="replace"))
        self._on_look(Look(header["rc"], *self._texts, header["same"], header["age_s"]))

    def value(self, header: Header, body: bytes) -> None:
        return None
