"""Requests about programs: one that outlives the connection, one at intervals, and bytes both ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from clusterfn.errors import Unreachable
from clusterfn.hosts.rpc.frames import Header
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import MalformedAnswer, OpenRequest, SimpleRequest, boolean, number


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

    def __init__(self, fields: Header, on_look: Callable[[CommandLook], Any]) -> None:
        super().__init__("repeat", fields, lambda *_: None)
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
