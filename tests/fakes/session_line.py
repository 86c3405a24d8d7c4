"""The stream of a session, whose other end is the test."""

from __future__ import annotations

import concurrent.futures
import json
from types import SimpleNamespace
from typing import Any, cast

from clusterfn import Unreachable
from clusterfn.bridge.agent.frames import Inbox, pack
from clusterfn.calls.session_stream import MOST_BYTES, MOST_UNTAKEN, CallStream
from clusterfn.hosts.rpc.reply import Reply
from tests.turns import settle

AT_MOST = MOST_UNTAKEN // MOST_BYTES  # calls of the largest size that are on their way at a time
LARGEST = bytes(MOST_BYTES)
DOOR = json.dumps({"socket": "/s", "attach": ["python", "attach.py", "/s"], "submission": "77"}).encode()


class Connection:
    """A connection whose other end is the test."""

    def __init__(self) -> None:
        self.waiting: list[Reply[bytes]] = []
        self.opened: list[tuple[Any, Reply[None], Any]] = []
        self.written: list[tuple[dict[str, Any], bytes]] = []
        self.gone: list[tuple[int, str]] = []
        self.link, self.is_usable = self, True

    def wait(self, path: str) -> Reply[bytes]:
        assert path == "/jobs/1/door.json"
        self.waiting.append(Reply(lambda: None))
        return self.waiting[-1]

    def connect_socket(self, path: str, first: bytes, on_data: Any) -> Reply[None]:
        assert first == pack({"what": "hello"})
        return self.open([path], on_data)

    def converse(self, argv: list[str], first: bytes, on_data: Any, unset: Any, nudge: bytes) -> Reply[None]:
        assert (first, nudge) == (pack({"what": "hello", "answer_pieces": True}), pack({"what": "nudge"}))
        return self.open(argv, on_data)

    def open(self, way: list[str], on_data: Any) -> Reply[None]:
        reply: Reply[None] = Reply(lambda: reply.reject(concurrent.futures.CancelledError()))
        self.opened.append((way, reply, on_data))
        return reply

    def write(self, reply: Reply[None], data: bytes) -> None:
        assert reply is self.opened[-1][1], "written to a stream that is gone"
        self.written += Inbox().feed(data)

    def usable(self) -> bool:
        return self.is_usable

    def say(self, what: str, body: bytes = b"", taken: int = 0, **facts: Any) -> None:
        self.opened[-1][2](pack({**facts, "what": what, "taken": taken}, body))

    def lose(self, why: str = "the connection was lost") -> None:
        """End the stream."""
        self.opened[-1][1].reject(Unreachable(why))
        settle()

    def open_door(self) -> None:
        """Say where the session listens."""
        self.waiting[-1].resolve(DOOR)
        settle()


class Call:
    """A call that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def append(self, file: str, data: bytes) -> None:
        self.heard.append((file, data))

    def conclude(self, told: bytes, value: bytes | None) -> None:
        self.heard.append(("end", told, value))

    def go_on_with_files(self, has_arrived: bool, dead: BaseException | None = None) -> None:
        self.heard.append(("dead", str(dead)) if dead else ("lost", has_arrived))


def opened(join: tuple[str, ...] | None = None) -> tuple[CallStream, Connection]:
    """A stream whose session has said where it listens."""
    connection = Connection()
    scheduler = SimpleNamespace(has_nodes=join is not None, join_command=lambda _: join, unset=())
    session = cast(Any, SimpleNamespace(connection=connection, scheduler=scheduler))
    stream = CallStream(session, "/jobs/1", lambda *gone: connection.gone.append(gone))
    stream.open()
    settle()
    connection.open_door()
    return stream, connection


def welcomed() -> tuple[CallStream, Connection]:
    """One whose session has also said that it takes calls."""
    stream, connection = opened()
    connection.say("welcome")
    return stream, connection


def send(stream: CallStream, number: int, data: bytes = b"call") -> Call | None:
    call = Call()
    return call if stream.send(number, call, data, {"sys_path": ["/m"]}, True) else None


def sent(stream: CallStream, number: int) -> Call:
    """A call that goes through the stream."""
    call = send(stream, number)
    assert call
    return call
