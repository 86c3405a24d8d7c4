"""The stream of a link, its open requests by number, and the order in which their frames are sent."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from clusterfn.errors import ClusterfnError
from clusterfn.hosts.keepalive import Keepalive
from clusterfn.hosts.rpc.frames import CHUNK, HELLO_ID, AgentStream, Header, pack
from clusterfn.hosts.rpc.requests import OpenRequest
from clusterfn.hosts.transports import Stream

FAILURES_KEPT = 10_000
# Bytes that may be queued for a host before callers wait.
FULL = 8 * 2**20
# So many requests make a burst, if each comes within `_GATHER_S` of the one before it.
_BURST = 16
# A request of a burst waits this long for others, because each write wakes five processes on its way.
_GATHER_S = 0.002
_log = logging.getLogger("clusterfn")


class LinkStream:
    """The present stream of a link. The condition `changed` guards it, and wakes those that wait for a change.

    Attributes:
        opened: The stream; the last one while there is none.
        connected: Whether there is one.
        over: Why the link is closed for good; None while it may still connect.
        pulse: Whether the other end is alive.
    """

    def __init__(self, host: str, opened: AgentStream) -> None:
        self.changed = threading.Condition()
        self.opened = opened
        self.connected = True
        self.over: ClusterfnError | None = None
        self.pulse = Keepalive(time.monotonic())
        self._host = host

    def renew(self, opened: AgentStream) -> bool:
        """Replace the lost stream by this one; False if the link was closed meanwhile."""
        self.opened = opened
        self.connected = self.over is None
        self.pulse.hear(time.monotonic())
        self.changed.notify_all()
        return self.connected

    def lose(self, opened: AgentStream) -> None:
        """Mark this stream as lost, and close it."""
        with self.changed:
            if opened is self.opened:
                self.connected = False
        self.hang_up(opened)

    def hang_up(self, opened: AgentStream) -> None:
        """Close a stream; this may block for as long as closing takes."""
        try:
            opened.stream.close()
        except Exception:  # noqa: BLE001 - whatever a useless stream says, callers still wait for answers
            _log.debug("the stream to %s could not be closed", self._host, exc_info=True)


class PendingRequests(dict[int, OpenRequest[Any]]):
    """The open requests of a link by number, and how those failed that later requests may depend on.

    The caller holds the link's lock.

    Attributes:
        last: The number that was given last.
        unsent: The numbers of requests made while there was no connection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = HELLO_ID
        self.unsent: set[int] = set()
        self._failures: collections.OrderedDict[int, Header] = collections.OrderedDict()

    def number(self) -> int:
        self.last += 1
        return self.last

    def remove(self, number: int, failure: Header | None = None) -> OpenRequest[Any] | None:
        """Remove a request that has ended; keep how it failed, if it did, for requests that name it in `after`."""
        if failure is not None:
            self._failures[number] = failure
        while len(self._failures) > FAILURES_KEPT:
            self._failures.popitem(last=False)
        return self.pop(number, None)

    def failed_before(self, request: OpenRequest[Any]) -> Header | None:
        """Return how the first failed request in its `after` failed, in the agent's words; None if none failed."""
        return next((self._failures[number] for number in request.after if number in self._failures), None)


class RequestSender:
    """Sends requests before the chunks of transfers, which take turns.

    Args:
        line: The stream.
        is_open: Whether the request of that number is still wanted.
        give_up: Ends a request with an error of this side.
    """

    def __init__(
        self, line: LinkStream, is_open: Callable[[int], bool],
        give_up: Callable[[OpenRequest[Any], BaseException], None],
    ) -> None:  # fmt: skip
        self._line = line
        self._is_open = is_open
        self._give_up = give_up
        self._control: collections.deque[bytes] = collections.deque()
        self._transfers: collections.deque[tuple[OpenRequest[Any], Iterator[bytes]]] = collections.deque()
        self._sent = 0
        self._puts: collections.deque[float] = collections.deque(maxlen=_BURST)

    def is_full(self) -> bool:
        """Whether so much is queued that callers should wait before they send more. A file counts as its next chunk.

        The caller holds the stream's lock.
        """
        files = sum(min((request.reply.size or 0) - request.reply.moved, CHUNK) for request, _ in self._transfers)
        return files + sum(map(len, self._control)) > FULL

    def taken(self) -> int:
        """Return how many bytes the streams have taken so far."""
        return self._sent

    # The caller of the methods below holds the stream's lock.

    def send(self, request: OpenRequest[Any]) -> None:
        """Queue a request and the chunks of its transfer."""
        self._control.append(pack(request.header(self._is_open), request.body))
        chunks = request.chunks()
        if chunks is not None:
            self.transfer(request, chunks)
        self._line.changed.notify_all()

    def transfer(self, request: OpenRequest[Any], chunks: Iterator[bytes]) -> None:
        """Queue the chunks of a transfer."""
        self._transfers.append((request, chunks))
        self._line.changed.notify_all()

    def say(self, header: Header, body: bytes = b"") -> None:
        """Queue a frame of the link itself, such as a ping, or one for an open request."""
        self._control.append(pack(header, body))
        self._line.changed.notify_all()

    def forget(self) -> None:
        """Drop what was queued for an agent that is gone."""
        self._control.clear()
        self._transfers.clear()

    # The methods below run in the writer thread.

    def run(self) -> None:
        """Send all queued requests, then one chunk of the next transfer, again and again until the link is closed."""
        line = self._line
        while True:
            with line.changed:
                while line.over is None and not (line.connected and (self._control or self._transfers)):
                    line.changed.wait()
                if line.over is not None:
                    return
                is_burst = len(self._puts) == _BURST and time.monotonic() - self._puts[0] < _BURST * _GATHER_S
                gathers = is_burst and not self._transfers
            if gathers:
                # Sleep without the lock, so that callers can queue more requests meanwhile.
                time.sleep(_GATHER_S)
            with line.changed:
                if line.over is not None or not line.connected:
                    continue
                # Take everything under the lock, and write after it: a write may block for as long as the line is slow.
                opened, requests = line.opened, b"".join(self._control)
                self._control.clear()
                transfer = self._transfers.popleft() if self._transfers else None
                # Wake callers that wait for room in the queue.
                line.changed.notify_all()
            try:
                self._put(opened.stream, requests)
                if transfer is not None:
                    self._put_chunk(opened, *transfer)
            except OSError:
                line.lose(opened)

    def _put(self, stream: Stream, data: bytes) -> None:
        if data:
            self._puts.append(time.monotonic())
            stream.write(data)
            self._sent += len(data)
            self._line.pulse.send(len(data))

    def _put_chunk(self, opened: AgentStream, request: OpenRequest[Any], chunks: Iterator[bytes]) -> None:
        if not self._is_open(request.id):
            return
        try:
            chunk = next(chunks, None)
        except OSError as error:
            # The local file cannot be read, which ends this request alone. Errors of the stream come from `_put` below.
            self._give_up(request, error)
            return
        if chunk is None:
            return
        self._put(opened.stream, chunk)
        # Progress of an upload shows that the other end is alive. A ping that was written does not.
        self._line.pulse.moved = time.monotonic()
        with self._line.changed:
            # Put the transfer at the end of the queue, so that transfers take turns. A reconnect queues it itself.
            if opened is self._line.opened and self._line.connected:
                self._transfers.append((request, chunks))
