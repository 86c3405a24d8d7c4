"""The stream of a link: its open requests by number, the order in which their frames are sent, and what answers them.

A reader thread gives what comes to the requests that it answers, unless the thread that receives it does so.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts.rpc.frames import CHUNK, HELLO_ID, AgentStream, Header, error_of, no_frame, pack, wrapped
from clusterfn.hosts.rpc.requests import MalformedAnswer, OpenRequest
from clusterfn.hosts.transports import Stream

# Far above the numbers of requests, so that a ping never takes the number of one.
PING_ID = 2**31
_FAILURES_KEPT = 10_000
# Bytes that may be queued for a host before callers wait.
_FULL = 8 * 2**20
# Ping after so many seconds without any byte from the host.
QUIET_S = 15.0
# Without any byte for so long, the stream counts as dead.
DEAD_S = 45.0
# A ping always gets at least this time for its answer, however long the silence before it was.
ANSWER_S = 20.0
# On a line of this speed, in bytes/s, our own bytes that are still on their way delay an answer.
SLOWEST = 50_000
# Buffers hold no more bytes than this, so no more can delay an answer.
BUFFERED = 8 * 2**20
# Ping an idle connection this often, because an agent ends after 20 minutes of silence.
IDLE_PING_S = 240.0
WELL, ASK, DEAD = "well", "ask", "dead"
_log = logging.getLogger("clusterfn")


class Keepalive:
    """When one stream last carried something, and what follows from that. Times are those of time.monotonic().

    Attributes:
        heard: When something last arrived.
        moved: When something last arrived, or a transfer of ours made progress.
    """

    def __init__(self, now: float) -> None:
        self.hear(now)

    def hear(self, now: float) -> None:
        """Record that something came."""
        self.heard = self.moved = now
        self._unanswered = 0
        # The time of the ping that has no answer yet; None if there is none.
        self._pinged_at: float | None = None

    def send(self, size: int) -> None:
        """Record that so many bytes went out, which may delay an answer."""
        self._unanswered = min(self._unanswered + size, BUFFERED)

    def look(self, now: float, busy: bool) -> str:
        """Return WELL; or ASK, once, when a ping is due; or DEAD. `busy`: an answer is waited for."""
        # Send only one ping: if the first gets no answer, a second would get none either.
        if self._pinged_at is None:
            if now - self.heard <= (QUIET_S if busy else IDLE_PING_S):
                return WELL
            self._pinged_at = now
            return ASK
        # Our own bytes that are on their way may delay the answer on a slow line, so allow for them.
        late = self._unanswered / SLOWEST
        dead = now - max(self.heard, self.moved) >= DEAD_S + late and now - self._pinged_at >= ANSWER_S + late
        return DEAD if dead else WELL


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

    def wait_until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until this holds, or the link is closed; return False if neither is so after that time."""
        with self.changed:
            return self.changed.wait_for(lambda: self.over is not None or holds(), timeout_s)

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
        while len(self._failures) > _FAILURES_KEPT:
            self._failures.popitem(last=False)
        return self.pop(number, None)

    def failed_before(self, request: OpenRequest[Any]) -> Header | None:
        """Return how the first failed request in its `after` failed, in the agent's words; None if none failed."""
        return next((self._failures[number] for number in request.after if number in self._failures), None)


class RequestSender:
    """Sends requests before the chunks of transfers, which take turns.

    Args:
        is_open: Whether the request of that number is still wanted.
        give_up: Ends a request with an error of this side.
    """

    def __init__(
        self,
        line: LinkStream,
        is_open: Callable[[int], bool],
        give_up: Callable[[OpenRequest[Any], BaseException], None],
    ) -> None:
        self._line = line
        self._is_open = is_open
        self._give_up = give_up
        self._control = bytearray()
        self._transfers: collections.deque[tuple[OpenRequest[Any], Iterator[bytes]]] = collections.deque()

    def is_full(self) -> bool:
        """Whether so much is queued that callers should wait before they send more. A file counts as its next chunk.

        The caller holds the stream's lock.
        """
        files = sum(min((request.reply.size or 0) - request.reply.moved, CHUNK) for request, _ in self._transfers)
        return files + len(self._control) > _FULL

    # The caller of the methods below holds the stream's lock.

    def send(self, request: OpenRequest[Any]) -> None:
        """Queue a request and the chunks of its transfer."""
        self._control += pack(request.header(self._is_open), request.body)
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
        self._control += pack(header, body)
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
                # Take everything under the lock, and write after it: a write may block for as long as the line is slow.
                opened, requests = line.opened, bytes(self._control)
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
            stream.write(data)
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


class AnswerReader:
    """Gives answers to the open requests of a link.

    Args:
        cancel: Forgets the request of that number, and asks the host to stop it.

    Attributes:
        threads: Those on which no answer can be waited for.
    """

    def __init__(self, host: Host, line: LinkStream, requests: PendingRequests, cancel: Callable[[int], None]) -> None:
        self._host = host
        self._line = line
        self._requests = requests
        self._cancel = cancel
        self.threads: set[int] = set()

    def serve(self, opened: AgentStream) -> HostError | None:
        """Answer requests until the stream has ended; return the error if it sent what is no frame."""

        def progress() -> None:
            # A long answer takes minutes on a slow line. Each part of it shows that the connection is alive.
            self._line.pulse.moved = time.monotonic()

        opened.reader.on_part = progress
        try:
            while (frame := opened.reader.frame()) is not None:
                self._line.pulse.hear(time.monotonic())
                self._answer(*frame)
        except OSError:
            return None
        except HostError as error:
            error.host = self._host.name
            return error
        return None

    def _answer(self, header: Header, body: bytes) -> None:
        request = self._requests.get(header["id"])
        if request is None:
            if not 0 < header["id"] <= self._requests.last and header["id"] != PING_ID:
                raise no_frame("it answers an unknown request", repr(header).encode())
            # This answers a request that was cancelled here meanwhile, or a ping.
            return
        if header.get("end"):
            self._end(request, header, body)
            return
        try:
            request.take(header, body)
        except MalformedAnswer as odd:
            self.give_up(request, self._senseless(request, odd))
        except BaseException as error:  # noqa: BLE001 - the caller's own function: its error goes to its reply
            self.give_up(request, error)

    def _end(self, request: OpenRequest[Any], header: Header, body: bytes) -> None:
        failed: Header | None = None if header.get("ok") else header["error"]
        with self._line.changed:
            if failed is not None and failed["kind"] == "skipped":
                # The agent skips a request if an earlier one that it needs has failed. The error of that one says why.
                failed = self._requests.failed_before(request) or failed
            self._requests.remove(request.id, failed)
        if failed is not None:
            request.fail(error_of(self._host, failed), header)
            return
        try:
            request.finish(header, body)
        except Exception as odd:  # noqa: BLE001 - a host that leaves out what belongs there: this request alone fails
            request.fail(self._senseless(request, odd))

    def give_up(self, request: OpenRequest[Any], error: BaseException) -> None:
        """End a request with an error of this side, and stop it on the host."""
        request.fail(error)
        self._cancel(request.id)

    def _senseless(self, request: OpenRequest[Any], odd: BaseException) -> ClusterfnError:
        return wrapped(self._host.name, odd, f"{self._host.name} sent an invalid answer to `{request.do}`")

    @contextlib.contextmanager
    def no_wait_here(self) -> Iterator[None]:
        """Reject waits for an answer on this thread meanwhile: no other thread brings it."""
        here = threading.get_ident()
        new = here not in self.threads
        self.threads.add(here)
        try:
            yield
        finally:
            if new:
                self.threads.discard(here)
