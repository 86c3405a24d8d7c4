"""Open requests: what each sends, what it does with answers, and whether it is sent again after a reconnect.

A request is made by `host`, registered with the link, and ends exactly once. `take`, `finish` and `fail` are called by
the link's reader thread; `header` and `chunks` by the thread that connects or writes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from clusterfn.errors import Unreachable
from clusterfn.hosts.rpc.frames import Header
from clusterfn.hosts.rpc.reply import AnsweringLink, Reply

T = TypeVar("T")
_log = logging.getLogger("clusterfn")


class MalformedAnswer(Exception):
    """An answer that lacks what belongs there, or has it of another type or size."""


def number(header: Header, name: str, below: float = math.inf) -> int:
    """Return a whole number of an answer, from 0 to below `below`; raise MalformedAnswer if it is none."""
    value = header.get(name)
    if type(value) is not int or not 0 <= value < below:
        raise MalformedAnswer(f"{name}: {ascii(value)[:80]}")
    return value


def seconds(header: Header, name: str) -> float:
    """Return a time of an answer, at least 0; raises as `number`."""
    value = header.get(name)
    if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
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
        self.reply: Reply[T] = self.reply_type(lambda: self.cancel())
        self.id = self.reply.id

    def register(self, number: int, link: AnsweringLink) -> None:
        """Set the number of the request, and what brings its answer."""
        fields = self.fields
        (what, *_) = fields.get("argv") or [fields.get("path") or fields.get("until") or ""]
        self.id = number
        self.reply.register(number, f"{self.do} {what}".rstrip(), link)

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

    def finish(self, header: Header, body: bytes) -> None:
        """Take the last answer."""
        self.reply.resolve(self.value(header, body))

    def value(self, header: Header, body: bytes) -> T:
        raise NotImplementedError

    def fail(self, error: BaseException, header: Header | None = None) -> None:
        self.reply.reject(error)


class SimpleRequest(OpenRequest[T]):
    """Its last answer is read by a function, and those before it are taken by another."""

    def __init__(
        self,
        do: str,
        fields: Header,
        read: Callable[[Header, bytes], T],
        body: bytes = b"",
        after: Sequence[Reply[Any]] = (),
        take: Callable[[Header, bytes], object] = lambda *_: None,
    ) -> None:
        super().__init__(do, fields, body, after)
        self._read, self._take = read, take

    def take(self, header: Header, body: bytes) -> None:
        self._take(header, body)

    def value(self, header: Header, body: bytes) -> T:
        return self._read(header, body)


Sink = Callable[[bytes], Any]


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
    """

    def __init__(
        self,
        files: Sequence[Followed],
        until: str,
        with_files: Sequence[tuple[str, Sink]],
        on_content: Callable[[bytes], Any] | None,
    ) -> None:
        # The fields of the request refer to these lists, so a repeated request asks only for what is missing.
        self._offsets: list[list[Any]] = [[file.path, file.offset] for file in files]
        self._results: list[list[Any]] = [[name, 0] for name, _ in with_files]
        fields = {"until": until, "files": self._offsets, "with": self._results}
        super().__init__("follow", {name: value for name, value in fields.items() if value})
        self._takers = [file.on_data for file in files]
        self._writers = [sink for _, sink in with_files]
        self._on_content = on_content
        self._content: bytes | None = None

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
            raise MalformedAnswer(f"file: {index}, before what describes it")
        self._writers[index](body)
        self.reply.moved, self.reply.size = self.reply.moved + len(body), number(header, "size")
        self._results[index][1] += len(body)

    def value(self, header: Header, body: bytes) -> bytes:
        if not self._writers:
            return body
        if self._content is None:
            raise MalformedAnswer("its end, before its content")
        return self._content


class ConversationRequest(OpenRequest[None]):
    """Bytes both ways, to a socket or a program of the host. It ends with the stream: what was on its way then cannot
    be known."""

    def __init__(self, fields: Header, first: bytes, on_data: Callable[[bytes], Any]) -> None:
        super().__init__("converse", fields, first)
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


class CommandLook(NamedTuple):
    """One look of a `repeat`.

    Attributes:
        rc: Exit status; negative: the signal; None: killed because it took too long.
        took_s: How long the program took. It may have looked at its beginning, and knows nothing of what came later.
    """

    rc: int | None
    out: str
    err: str
    took_s: float = 0.0


class RepeatRequest(SimpleRequest[None]):
    """A program at intervals."""

    def __init__(self, fields: Header, on_look: Callable[[CommandLook], Any]) -> None:
        super().__init__("repeat", fields, lambda *_: None)
        self._on_look = on_look
        self._texts = ("", "")

    def take(self, header: Header, body: bytes) -> None:
        same, rc = boolean(header, "same"), header.get("rc")
        if not (rc is None or type(rc) is int):
            raise MalformedAnswer(f"rc: {ascii(rc)[:80]}")
        took_s = seconds(header, "took_s")
        if not same:
            end = number(header, "out", below=len(body) + 1)
            self._texts = (body[:end].decode(errors="replace"), body[end:].decode(errors="replace"))
        self._on_look(CommandLook(rc, *self._texts, took_s))


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

    def register(self, number: int, request: str, link: AnsweringLink) -> None:
        super().register(number, request, link)
        self.exited.register(number, f"the end of {request}", link)


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
