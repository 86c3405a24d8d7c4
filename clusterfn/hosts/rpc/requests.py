"""Open requests: what each sends, what it does with answers, and whether it is sent again after a reconnect.

A request is made by `host`, registered with the link, and ends exactly once. `take`, `finish` and `fail` are called by
the link's reader thread; `header` and `chunks` by the thread that connects or writes.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

from clusterfn.errors import HostError
from clusterfn.hosts.rpc.frames import CHUNK, Header, pack
from clusterfn.hosts.rpc.reply import Reply

if TYPE_CHECKING:
    from clusterfn.bridge.agent.compression import Compressor

T = TypeVar("T")
# Uploads of at least so many bytes are resumed after a reconnect. Smaller ones are sent again from the start.
RESUMED_FROM = 1 << 20
_log = logging.getLogger("clusterfn")


class MalformedAnswer(Exception):
    """An answer that lacks what belongs there, or has it of another type or size."""


def number(header: Header, name: str, below: float = math.inf) -> int:
    """Return a whole number of an answer, at least 0.

    Raises:
        MalformedAnswer: It is missing, is no whole number, or is not below `below`.
    """
    value = header.get(name)
    if type(value) is not int or not 0 <= value < below:
        raise MalformedAnswer(f"{name}: {ascii(value)[:80]}")
    return value


def boolean(header: Header, name: str) -> bool:
    """Return a boolean of an answer; raises as `number`."""
    value = header.get(name)
    if type(value) is not bool:
        raise MalformedAnswer(f"{name}: {ascii(value)[:80]}")
    return value


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
        # Returns how many bytes the link has written so far, from which the compressor measures the speed of the line.
        self.taken: Callable[[], int] = lambda: 0
        self.reply: Reply[T] = self.reply_type(lambda: self.cancel())
        self.id = self.reply.id

    def register(
        self, number: int, host: str, answering: AbstractSet[int] = frozenset(), trouble: Callable[[], str] = str
    ) -> None:  # fmt: skip
        """Set the number and the host of the request, the threads that bring its answer, and what says why not."""
        fields = self.fields
        (what, *_) = fields.get("argv") or [fields.get("path") or fields.get("until") or ""]
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
        """Whether to send it again, after a reconnect; False: it has been ended, as it cannot be taken up.

        What is sent again says in its fields what has come.
        """
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


class MemorySink:
    """What may be written to by the thread that receives."""

    @property
    def is_in_memory(self) -> bool:
        """Whether `write` waits for nothing now: no disk, no lock, no answer."""
        return False

    def write(self, piece: bytes) -> Any:
        raise NotImplementedError


Sink = Union[Callable[[bytes], Any], MemorySink]


def writer_of(sink: Sink) -> Callable[[bytes], Any]:
    """Return the sink as a function."""
    return sink.write if isinstance(sink, MemorySink) else sink


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


class Followed(NamedTuple):
    """A file that is followed: its bytes from `offset` on go to `on_data` as it grows. It may not exist yet."""

    path: str
    on_data: Callable[[bytes], Any]
    offset: int = 0


class FollowRequest(OpenRequest[bytes]):
    """Files as they grow, until another one exists; then that one, with those that belong to it.

    What the taker of a followed file raises ends the request, or only that taker if another file is waited for.

    Args:
        until: The file that is waited for; "" for none.
        on_early: Called before bytes of `with_files` that come ahead of `until`, with whether all of them begin again;
            None if none are wanted. What it raises ends the request.
    """

    def __init__(
        self, files: Sequence[Followed], until: str, with_files: Sequence[tuple[str, Sink]],
        on_content: Callable[[bytes], Any] | None, on_early: Callable[[bool], Any] | None,
    ) -> None:  # fmt: skip
        # The fields of the request refer to these lists, so a repeated request asks only for what is missing.
        self._offsets: list[list[Any]] = [[file.path, file.offset] for file in files]
        self._results: list[list[Any]] = [[name, 0] for name, _ in with_files]
        fields = {"until": until, "files": self._offsets, "with": self._results, "early": on_early is not None}
        super().__init__("follow", {name: value for name, value in fields.items() if value})
        self._takers = [file.on_data for file in files]
        self._writers = [writer_of(sink) for _, sink in with_files]
        self._memory = [sink for _, sink in with_files if isinstance(sink, MemorySink)]
        self._on_content, self._on_early = on_content, on_early
        self._content: bytes | None = None

    def takes_at_once(self, header: Header) -> bool:
        if "content" in header or header.get("again") or len(self._memory) < len(self._writers):
            return False
        return all(sink.is_in_memory for sink in self._memory)

    def take(self, header: Header, body: bytes) -> None:
        if "offset" in header:
            self._take_growth(header, body)
        elif "content" in header and self._writers:
            self._content = body
            if self._on_content is not None:
                self._on_content(body)
        else:
            self._take_result(header, body)

    def _take_growth(self, header: Header, body: bytes) -> None:
        index = number(header, "file", below=len(self._takers))
        path, offset = self._offsets[index]
        if number(header, "offset") != offset:
            raise MalformedAnswer(f"offset: {header['offset']}, after {offset} bytes")
        # Count the bytes before calling the taker: if it fails, a repeated request must not bring them again.
        self._offsets[index][1] += len(body)
        try:
            self._takers[index](body)
        except BaseException:
            # This is a function of the caller, which may raise anything, and the other files must still be followed.
            if "until" not in self.fields:
                raise
            self._takers[index] = lambda _: None
            _log.exception("what takes the bytes of %s failed, and gets no more of them", path)

    def _take_result(self, header: Header, body: bytes) -> None:
        index = number(header, "file", below=len(self._writers))
        if self._content is None:
            if self._on_early is None or not (header.get("early") or header.get("again")):
                raise MalformedAnswer(f"file: {index}, before what describes it")
            self._on_early(bool(header.get("again")))
            if header.get("again"):
                self._results[index][1] = self.reply.moved = 0
                return
        self._writers[index](body)
        self.reply.moved, self.reply.size = self.reply.moved + len(body), number(header, "size")
        self._results[index][1] += len(body)

    def value(self, header: Header, body: bytes) -> bytes:
        if not self._writers:
            return body
        if self._content is None:
            raise MalformedAnswer("its end, before its content")
        return self._content


class StillRequest(SimpleRequest[None]):
    """Report whenever a file has stopped changing, or the folder that it belongs into is gone."""

    def __init__(
        self, path: str, silent_s: float, unless: str, within: str, on_silent: Callable[[], Any],
        on_gone: Callable[[], Any], after: Sequence[Reply[Any]],
    ) -> None:  # fmt: skip
        still = {"path": path, "silent_s": silent_s, "unless": unless, "within": within}
        super().__init__("follow", {"still": still}, lambda *_: None, after=after)
        self._on_silent, self._on_gone = on_silent, on_gone

    def take(self, header: Header, body: bytes) -> None:
        if header.get("gone"):
            self._on_gone()
        else:
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
        self, number: int, host: str, request: str, answering: AbstractSet[int] = frozenset(),
        trouble: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        super().register(number, host, request, answering, trouble)
        self.exited.register(number, host, f"the end of {request}", answering, trouble)


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
