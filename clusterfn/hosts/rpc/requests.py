"""Open requests: what each sends, what it does with answers, and what it sends again after a reconnect.

A request is made by `host`, registered with the link, and ends exactly once. `take`, `finish` and `fail` are called by
the link's reader thread; `header` and `chunks` by the thread that connects or writes.
"""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, Union, runtime_checkable

from clusterfn.errors import HostError, Unreachable
from clusterfn.hosts.rpc.frames import CHUNK, Header, pack
from clusterfn.hosts.rpc.reply import Reply

if TYPE_CHECKING:
    from clusterfn.bridge.agent.compression import Compressor

T = TypeVar("T")
RESUMED_FROM = 1 << 20  # bytes of an upload, from which on a later agent continues it


class Writable(Protocol):
    """Takes bytes, as a binary file does."""

    def write(self, data: bytes, /) -> Any: ...


@runtime_checkable
class MemorySink(Writable, Protocol):
    """What may be written to by the thread that receives.

    Attributes:
        is_in_memory: Whether `write` waits for nothing now: no disk, no lock, no answer.
    """

    @property
    def is_in_memory(self) -> bool: ...


Sink = Union[Callable[[bytes], Any], Writable]


class FilePart(NamedTuple):
    """A part of a file: `size` bytes from `offset` on. Opened when it is sent, and not kept in memory."""

    path: Path
    offset: int
    size: int


Data = Union[bytes, memoryview, Path, FilePart]


class MalformedAnswer(Exception):
    """An answer that lacks what belongs there, or has it of another type or size."""


def number(header: Header, name: str, below: float = math.inf) -> int:
    """Return a whole number of an answer, at least 0.

    Raises:
        MalformedAnswer: It is missing, is no path, or is not below `below`.
    """
    found = header.get(name)
    if type(found) is not int or not 0 <= found < below:
        raise MalformedAnswer(f"{name}: {ascii(found)[:80]}")
    return found


def boolean(header: Header, name: str) -> bool:
    """Return a boolean of an answer; raises as `number`."""
    found = header.get(name)
    if type(found) is not bool:
        raise MalformedAnswer(f"{name}: {ascii(found)[:80]}")
    return found


Lacking = Callable[["list[str]", Callable[[Union[HostError, None]], None]], Any]


class OpenRequest(Generic[T]):
    """One open request. Subclasses say how an answer is read and what a second sending leaves out."""

    reply_type: type[Reply[Any]] = Reply

    def __init__(self, do: str, fields: Header, body: bytes = b"", after: Sequence[Reply[Any]] = ()) -> None:
        self.do = do
        self.fields = fields
        self.body = body
        self.after = tuple(reply.id for reply in after)
        self.cancel: Callable[[], None] = lambda: None
        self.upload: Callable[[Iterator[bytes]], None] = lambda _: None
        self.taken: Callable[[], int] = lambda: 0  # the bytes of all requests that the link has taken
        self.reply: Reply[T] = self.reply_type(lambda: self.cancel())
        self.id = self.reply.id

    def register(
        self, number: int, host: str, answering: AbstractSet[int] = frozenset(), trouble: Callable[[], str] = str
    ) -> None:  # fmt: skip
        """Set the number and the host of the request, the threads that bring its answer, and what says why not."""
        what = self.fields.get("path") or next(iter(self.fields.get("argv", ())), "")
        self.id = number
        self.reply.register(number, host, f"{self.do} {what}".rstrip(), answering, trouble)

    def header(self, still_open: Callable[[int], bool]) -> Header:
        """Return the request as it is to be sent now, naming only requests that are still open."""
        after = [number for number in self.after if still_open(number)]
        return {**self.fields, "id": self.id, "do": self.do, **({"after": after} if after else {})}

    def chunks(self) -> Iterator[bytes] | None:
        """Return the frames that follow the request, if it is a transfer, from the start."""
        return None

    def resend(self) -> bool:
        """Whether to send it to a new agent too; False: it has been ended instead."""
        return True

    def take(self, header: Header, body: bytes) -> None:
        """Take an answer before the last."""

    def takes_at_once(self, header: Header) -> bool:
        """Whether `take` only writes to memory, and waits for nothing."""
        return False

    def finish(self, header: Header, body: bytes) -> None:
        """Take the last answer."""
        self.reply.resolve(self.value(header, body))

    def value(self, header: Header, body: bytes) -> T:
        raise NotImplementedError

    def fail(self, error: BaseException, header: Header | None = None) -> None:
        self.reply.reject(error)


class SimpleRequest(OpenRequest[T]):
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


class UploadRequest(SimpleRequest[T]):
    """A request followed by the bytes of one or more sources.

    A large one has a number by which a later agent finds what the one before has written: after a reconnect the host
    says from which byte on it is to come.
    """

    def __init__(self, do: str, fields: Header, read: Callable[[Header, bytes], T], sources: Sequence[Data],
                 after: Sequence[Reply[Any]] = (), on_lacking: Lacking | None = None) -> None:  # fmt: skip
        super().__init__(do, fields, read, after=after)
        self._on_lacking = on_lacking
        self._sources = sources
        self._sizes = [size_of(source) for source in sources]
        self.reply.size = sum(self._sizes)
        self._sendings = 0
        self._compressor: Compressor | None = None
        if self.reply.size >= RESUMED_FROM:
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
            known = isinstance(paths, list) and set(map(str, paths)) <= set(self.fields.get("needs", ()))
            if not known or self._on_lacking is None:
                raise MalformedAnswer(f"lacking: {ascii(paths)[:80]}")
            self._on_lacking(paths, self._go_on)
            return
        if "resumed" not in self.fields:
            raise MalformedAnswer("a place to continue at, of what was not sent before")
        self.upload(self._chunks(number(header, "at", below=(self.reply.size or 0) + 1)))

    def _go_on(self, error: HostError | None) -> None:
        """Have the host look again, or end the request with the error for which something was not sent again."""
        failed = {} if error is None else {"failed": {"kind": error.kind or "io", "message": error.message}}
        self.upload(iter([pack({"id": self.id, "do": "again", **failed})]))

    def _chunks(self, begin: int) -> Iterator[bytes]:
        """Yield the frames from a byte on. On fast links `pack` copies each byte once, and that is all."""
        if "resume" in self.fields:
            from clusterfn.bridge.agent.compression import Compressor  # few uploads are as large

            self._compressor = Compressor(self.taken)
        held: list[bytes | memoryview] = []
        room, self.reply.moved = CHUNK, begin
        for piece in (memoryview(piece) for source in self._rest(begin) for piece in pieces_of(source)):
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

    def _rest(self, begin: int) -> Iterator[Data]:
        """Yield the sources without their first bytes."""
        for source, size in zip(self._sources, self._sizes):
            if begin and begin >= size:
                begin -= size
                continue
            if begin and isinstance(source, Path):
                yield FilePart(source, begin, sys.maxsize)
            elif begin and isinstance(source, FilePart):
                yield FilePart(source.path, source.offset + begin, source.size - begin)
            else:
                yield source[begin:] if begin and not isinstance(source, (Path, FilePart)) else source
            begin = 0


def pieces_of(source: Data) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a source, a chunk at a time."""
    if isinstance(source, Path):
        source = FilePart(source, 0, sys.maxsize)  # as long as it is by then
    if not isinstance(source, FilePart):
        for start in range(0, len(source), CHUNK):
            yield source[start : start + CHUNK]
        return
    left = source.size
    with source.path.open("rb", buffering=0) as file:
        file.seek(source.offset)
        while piece := file.read(min(CHUNK, left)):
            left -= len(piece)
            yield piece


def size_of(source: Data) -> int:
    """Return how many bytes a source has now."""
    if isinstance(source, FilePart):
        return source.size
    return source.stat().st_size if isinstance(source, Path) else len(source)


def writer_of(sink: Sink) -> Callable[[bytes], Any]:
    """Return the sink as a function."""
    return sink if callable(sink) else sink.write


class GetRequest(OpenRequest[int]):
    """A file's bytes; a second sending begins where the first one broke off."""

    def __init__(
        self, path: str, sink: Sink, offset: int, after: Sequence[Reply[Any]], on_size: Callable[[int], Any] | None,
        until: int | None = None,
    ) -> None:  # fmt: skip
        part = {} if until is None else {"until": until}
        super().__init__("get", {"path": path, "offset": offset, **part}, after=after)
        self._write = writer_of(sink)
        self._memory = sink if isinstance(sink, MemorySink) else None
        self._on_size = on_size

    def header(self, still_open: Callable[[int], bool]) -> Header:
        self.reply.size = None  # each agent says how large the file is when it begins
        return super().header(still_open)

    def takes_at_once(self, header: Header) -> bool:
        return self._memory is not None and self._memory.is_in_memory and self.reply.size is not None

    def take(self, header: Header, body: bytes) -> None:
        if self.reply.size is None:
            self.reply.size = number(header, "size")
            if "of" in header:  # what a later agent must find, so that its bytes belong to these
                self.fields["of"] = header["of"]
            if self.reply.size > self.fields.get("until", self.reply.size):
                raise MalformedAnswer(f"size: {self.reply.size}, of a part that ends at {self.fields['until']}")
            if self._on_size is not None:
                self._on_size(self.reply.size)
        if self.fields["offset"] + len(body) > self.reply.size:
            raise MalformedAnswer(f"more bytes than the {self.reply.size} that it announced")
        self._write(body)
        self.fields["offset"] += len(body)
        self.reply.moved += len(body)

    def value(self, header: Header, body: bytes) -> int:
        """Return the offset that was reached: that of its end."""
        reached: int = self.fields["offset"]
        if number(header, "size") != reached or reached < (self.reply.size or 0):
            raise MalformedAnswer(f"size: {header['size']}, after {reached} bytes of {self.reply.size}")
        return reached


class GetEachRequest(OpenRequest[None]):
    """Small files below a folder, each whole; a second sending asks only for those that have not come.

    Args:
        sizes: How large each may be, by its name.
    """

    def __init__(
        self, folder: str, sizes: Mapping[str, int], on_file: Callable[[str, bytes | None], Any],
        after: Sequence[Reply[Any]],
    ) -> None:  # fmt: skip
        super().__init__("get_each", {"path": folder, "files": [list(each) for each in sizes.items()]}, after=after)
        self._on_file = on_file

    def take(self, header: Header, body: bytes) -> None:
        sizes, asked = header.get("sizes"), self.fields["files"]
        if not isinstance(sizes, list) or not 0 < len(sizes) <= len(asked):
            raise MalformedAnswer(f"sizes: {ascii(sizes)[:80]}, of {len(asked)} files")
        begin = 0
        for size, (name, most) in zip(sizes, asked):
            if size is not None and (type(size) is not int or not 0 <= size <= min(most, len(body) - begin)):
                raise MalformedAnswer(f"size: {ascii(size)[:80]}, of {ascii(name)[:80]}, which may have {most} bytes")
            self._on_file(name, None if size is None else body[begin : begin + size])
            begin += size or 0
        if begin < len(body):
            raise MalformedAnswer(f"{len(body) - begin} bytes of no file")
        del asked[: len(sizes)]
        self.reply.moved += len(body)

    def value(self, header: Header, body: bytes) -> None:
        if self.fields["files"]:
            raise MalformedAnswer(f"its end, {len(self.fields['files'])} files before the last")


class FollowRequest(OpenRequest[int]):
    """A file's bytes as they come."""

    def __init__(self, path: str, on_data: Callable[[bytes], Any], offset: int, after: Sequence[Reply[Any]]) -> None:
        super().__init__("follow", {"path": path, "offset": offset}, after=after)
        self._on_data = on_data

    def take(self, header: Header, body: bytes) -> None:
        if number(header, "offset") != self.fields["offset"]:
            raise MalformedAnswer(f"offset: {header['offset']}, after {self.fields['offset']} bytes")
        self._on_data(body)
        self.fields["offset"] += len(body)

    def value(self, header: Header, body: bytes) -> int:
        return int(self.fields["offset"])


class WaitRequest(OpenRequest[bytes]):
    """A file that will come, with the ones that belong to it.

    Args:
        on_early: Called before bytes that come ahead of the file itself, with whether all of them begin again; None if
            none are wanted. What it raises ends the request.
    """

    def __init__(
        self,
        path: str,
        files: Sequence[tuple[str, Sink]],
        drain: Sequence[Reply[Any]],
        after: Sequence[Reply[Any]],
        on_content: Callable[[bytes], Any] | None,
        on_early: Callable[[bool], Any] | None = None,
    ) -> None:
        names = [name for name, _ in files]
        early = {"early": True} if on_early is not None else {}
        super().__init__("wait", {"path": path, "with": names, "offsets": [0] * len(names), **early}, after=after)
        self._on_early = on_early
        self._writers = [writer_of(sink) for _, sink in files]
        self._memory = [sink for _, sink in files if isinstance(sink, MemorySink)]
        self._drain = tuple(reply.id for reply in drain)
        self._on_content = on_content
        self._content: bytes | None = None

    def header(self, still_open: Callable[[int], bool]) -> Header:
        drain = [number for number in self._drain if still_open(number)]
        return {**super().header(still_open), "drain": drain}

    def takes_at_once(self, header: Header) -> bool:
        if "content" in header or header.get("again") or len(self._memory) < len(self._writers):
            return False
        return all(sink.is_in_memory for sink in self._memory)

    def take(self, header: Header, body: bytes) -> None:
        if "content" in header and self._writers:
            self._content = body
            if self._on_content is not None:
                self._on_content(body)
            return
        index = number(header, "file", below=len(self._writers))
        if self._content is None:
            if self._on_early is None or not (header.get("early") or header.get("again")):
                raise MalformedAnswer(f"file: {index}, before what describes it")
            self._on_early(bool(header.get("again")))
            if header.get("again"):
                self.fields["offsets"][index] = self.reply.moved = 0
                return
        self._writers[index](body)
        self.reply.moved, self.reply.size = self.reply.moved + len(body), number(header, "size")
        self.fields["offsets"][index] += len(body)

    def value(self, header: Header, body: bytes) -> bytes:
        if not self._writers:
            return body
        if self._content is None:
            raise MalformedAnswer("its end, before its content")
        return self._content


class ConversationRequest(OpenRequest[None]):
    """Bytes both ways, to a socket or a program of the host. It ends with the stream: what was on its way then cannot
    be known."""

    def __init__(self, do: str, fields: Header, first: bytes, on_data: Callable[[bytes], Any]) -> None:
        super().__init__(do, fields, first)
        self._on_data = on_data
        self._is_sent = False

    def header(self, still_open: Callable[[int], bool]) -> Header:
        self._is_sent = True
        return super().header(still_open)

    def take(self, header: Header, body: bytes) -> None:
        self._on_data(body)

    def value(self, header: Header, body: bytes) -> None:
        """Return nothing: the socket was closed, or the program has ended with status 0."""

    def resend(self) -> bool:
        if self._is_sent:
            self.fail(Unreachable("the connection to the host was lost", retryable=True))
        return not self._is_sent


class StillRequest(SimpleRequest[None]):
    """Report whenever a file has stopped changing."""

    def __init__(
        self, path: str, silent_s: float, unless: str, on_silent: Callable[[], Any], after: Sequence[Reply[Any]]
    ) -> None:
        fields = {"path": path, "silent_s": silent_s, "unless": unless}
        super().__init__("still", fields, lambda *_: None, after=after)
        self._on_silent = on_silent

    def take(self, header: Header, body: bytes) -> None:
        self._on_silent()


class Spawned(NamedTuple):
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

    def register(
        self, number: int, host: str, asked: str, answering: AbstractSet[int] = frozenset(),
        trouble: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        super().register(number, host, asked, answering, trouble)
        self.exited.register(number, host, f"the end of {asked}", answering, trouble)


class SpawnRequest(OpenRequest[Spawned]):
    """A detached process. Once its pid is known it is never started again."""

    reply: SpawnReply
    reply_type = SpawnReply

    def take(self, header: Header, body: bytes) -> None:
        starttime = None if header.get("starttime") is None else number(header, "starttime")
        self.reply.resolve(Spawned(number(header, "pid"), starttime))

    def finish(self, header: Header, body: bytes) -> None:
        if not self.reply.done():
            raise MalformedAnswer("its end, before its beginning")
        self.reply.exited.resolve(number(header, "status"))

    def resend(self) -> bool:
        if self.reply.done():
            self.reply.exited.resolve(None)
            return False
        return True

    def fail(self, error: BaseException, header: Header | None = None) -> None:
        self.reply.reject(error)
        self.reply.exited.reject(error)


class CommandLook(NamedTuple):
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


class RepeatRequest(SimpleRequest[None]):
    """A program at intervals."""

    def __init__(self, fields: Header, on_look: Callable[[CommandLook], Any], after: Sequence[Reply[Any]]) -> None:
        super().__init__("repeat", fields, lambda *_: None, after=after)
        self._on_look = on_look
        self._texts = ("", "")

    def take(self, header: Header, body: bytes) -> None:
        same, rc, age_s = boolean(header, "same"), header.get("rc"), header.get("age_s")
        if not (rc is None or type(rc) is int) or not (isinstance(age_s, (int, float)) and 0 <= age_s < math.inf):
            raise MalformedAnswer(f"rc: {ascii(rc)[:80]}, age_s: {ascii(age_s)[:80]}")
        if not same:
            end = number(header, "out", below=len(body) + 1)
            self._texts = (body[:end].decode(errors="replace"), body[end:].decode(errors="replace"))
        self._on_look(CommandLook(rc, *self._texts, same, age_s))
