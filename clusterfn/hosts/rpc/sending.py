"""What goes out over a link, and in which order: requests before the chunks of transfers, which take turns."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator
from typing import Any

from clusterfn.hosts.rpc.boot import Opened
from clusterfn.hosts.rpc.frames import Header, pack
from clusterfn.hosts.rpc.line import Line
from clusterfn.hosts.rpc.requests import Request
from clusterfn.hosts.transports import Stream


class Sender:
    """See the module.

    Args:
        line: The stream.
        is_open: Whether the request of that number is still wanted.
        give_up: Ends a request with an error of this side.
    """

    def __init__(
        self, line: Line, is_open: Callable[[int], bool], give_up: Callable[[Request[Any], BaseException], None]
    ) -> None:
        self._line = line
        self._is_open = is_open
        self._give_up = give_up
        self._control: collections.deque[bytes] = collections.deque()
        self._transfers: collections.deque[tuple[Request[Any], Iterator[bytes]]] = collections.deque()

    # under the line's lock

    def send(self, request: Request[Any]) -> None:
        """Its turn is to come, and with it that of all its bytes."""
        self._control.append(pack(request.header(self._is_open), request.body))
        chunks = request.chunks()
        if chunks is not None:
            self._transfers.append((request, chunks))
        self._line.changed.notify_all()

    def say(self, header: Header) -> None:
        """A frame of the link's own."""
        self._control.append(pack(header))
        self._line.changed.notify_all()

    def forget(self) -> None:
        """What was to go to an agent that is not there any more."""
        self._control.clear()
        self._transfers.clear()

    # the writer thread

    def run(self) -> None:
        """Until the link is over."""
        while self._take_turn():
            pass

    def _take_turn(self) -> bool:
        """All requests and one chunk of the next transfer; False once there is no more to do."""
        with self._line.changed:
            while not self._has_to_send():
                self._line.changed.wait()
            if self._line.over is not None:
                return False
            opened, requests = self._line.opened, b"".join(self._control)
            self._control.clear()
            transfer = self._transfers.popleft() if self._transfers else None
        try:
            self._put(opened.stream, requests)
            if transfer is not None:
                self._put_chunk(opened, *transfer)
        except OSError:
            self._line.lose(opened)
        return True

    def _has_to_send(self) -> bool:
        return self._line.over is not None or bool(self._line.connected and (self._control or self._transfers))

    def _put(self, stream: Stream, data: bytes) -> None:
        if data:
            stream.write(data)
            self._line.pulse.send(len(data))

    def _put_chunk(self, opened: Opened, request: Request[Any], chunks: Iterator[bytes]) -> None:
        if not self._is_open(request.id):
            return
        try:
            chunk = next(chunks, None)
        except OSError as error:  # the local file, not the stream
            self._give_up(request, error)
            return
        if chunk is None:
            return
        self._put(opened.stream, chunk)
        self._line.pulse.moved = time.monotonic()  # an upload that goes on is a sign of life; our own pings are none
        with self._line.changed:
            if opened is self._line.opened and self._line.connected:
                self._transfers.append((request, chunks))
