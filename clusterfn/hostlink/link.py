"""The link to one host: open requests over one stream, sent again when the stream has broken.

A reader thread gives answers to their requests, and connects anew when the stream ends; a writer thread sends. Requests
go before the chunks of transfers, and open transfers take turns. Called by `host`.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clusterfn.errors import AuthenticationError, ConfigError, HostError, HostKeyError, Unreachable
from clusterfn.hostlink.boot import HELLO_ID, Opened
from clusterfn.hostlink.failures import error_of
from clusterfn.hostlink.frames import Header, pack
from clusterfn.hostlink.requests import Request
from clusterfn.spec import Host
from clusterfn.transport import Stream

PAUSE_FIRST_S, PAUSE_LAST_S = 0.5, 30.0
PING_ID = 2**31
QUIET_S = 15.0  # without a word, ask for one
DEAD_S = 45.0  # without an answer, the stream is dead
ANSWER_S = 20.0  # how long an answer may take at least, whenever it was asked for
SLOWEST = 50_000  # bytes/s of the slowest line on which our own unsent bytes may delay an answer
BUFFERED = 8 * 2**20  # the most bytes that can be on their way
IDLE_PING_S = 240.0  # an agent leaves after 20 minutes of silence
FAILURES_KEPT = 10_000
BOOT_FAILURES = 5


@dataclass(frozen=True)
class State:
    """How the link stands: "connected", "reconnecting" or "closed", since when (time.time()), and why."""

    name: str
    since: float
    cause: str = ""


class Link:
    """See the module.

    Args:
        opener: Makes a stream whose agent has said hello.
        opened: The first one.
        on_hello: Told the hello of each later agent.
    """

    def __init__(
        self, host: Host, opener: Callable[[], Opened], opened: Opened, on_hello: Callable[[Header], None]
    ) -> None:
        self.host = host
        self._opener = opener
        self._on_hello = on_hello
        self._changed = threading.Condition(threading.RLock())
        self._numbers = itertools.count(HELLO_ID + 1)
        self._requests: dict[int, Request[Any]] = {}
        self._failures: collections.OrderedDict[int, str] = collections.OrderedDict()
        self._control: collections.deque[bytes] = collections.deque()
        self._transfers: collections.deque[tuple[Request[Any], Iterator[bytes]]] = collections.deque()
        self._listeners: list[Callable[[State], None]] = []
        self._pid = os.getpid()
        self._opened = opened
        self._connected = True
        self._error: BaseException | None = None
        self._heard = self._moved = time.monotonic()
        self._unanswered = 0
        self._pinged: float | None = None  # when a sign of life was asked for that has not come
        self.state = State("connected", time.time())
        for loop in (self._read, self._write):
            name = f"clusterfn-{loop.__name__.strip('_')}-{host.name}"
            threading.Thread(target=loop, name=name, daemon=True).start()
        _watchdog.add(self)

    # requests

    def send(self, request: Request[Any]) -> None:
        """Register the request and have it sent; waits for nothing.

        Raises:
            HostError: The link is closed, refused for good, or belongs to the parent process.
        """
        with self._changed:
            self._check()
            number = next(self._numbers)
            request.register(number, self.host.name)
            request.cancel = lambda: self.cancel(number)
            self._requests[request.id] = request
            skipped = next((self._failures[number] for number in request.after if number in self._failures), None)
            if skipped is None and self._connected:
                self._enqueue(request)
            self._changed.notify_all()
        if skipped is not None:
            self._end(request, {"ok": False, "error": {"kind": "skipped", "message": skipped}}, b"")

    def cancel(self, number: int) -> None:
        """Forget the request of that number, and tell the host to stop it."""
        with self._changed:
            request = self._requests.pop(number, None)
            if request is None:
                return
            self._note_failure(request.id, "it was cancelled")
            if self._connected and os.getpid() == self._pid:
                self._control.append(pack({"id": next(self._numbers), "do": "stop", "target": request.id}))
                self._changed.notify_all()
        request.fail(concurrent.futures.CancelledError())

    def close(self) -> None:
        """End the stream and every open request."""
        if os.getpid() == self._pid:
            self._die(HostError(f"The connection to {self.host.name} was closed", host=self.host.name))

    def usable(self) -> bool:
        """Whether requests can be sent: not closed, not refused for good, not a parent's."""
        return self._error is None and os.getpid() == self._pid

    def on_state(self, listener: Callable[[State], None]) -> None:
        """Tell `listener` each change, on the reader thread."""
        self._listeners.append(listener)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise HostError(
                f"The connection to {self.host.name} belongs to process {self._pid}, which forked this one",
                host=self.host.name,
                hint="connect again in this process, or start it with the spawn method",
            )
        if self._error is not None:
            raise self._error

    def _enqueue(self, request: Request[Any]) -> None:
        self._control.append(pack(request.header(self._requests.__contains__), request.body))
        chunks = request.chunks()
        if chunks is not None:
            self._transfers.append((request, chunks))

    def _note_failure(self, number: int, message: str) -> None:
        self._failures[number] = message
        while len(self._failures) > FAILURES_KEPT:
            self._failures.popitem(last=False)

    # the writer thread

    def _write(self) -> None:
        try:
            while self._write_a_turn():
                pass
        except Exception as error:  # noqa: BLE001 - the thread's outermost frame: whoever waits must hear of it
            self._die(error)

    def _write_a_turn(self) -> bool:
        """All requests and one chunk of the next transfer; False once there is no more to do."""
        with self._changed:
            while not self._has_to_send():
                self._changed.wait()
            if self._error is not None:
                return False
            opened, requests = self._opened, b"".join(self._control)
            self._control.clear()
            transfer = self._transfers.popleft() if self._transfers else None
        try:
            self._put(opened.stream, requests)
            if transfer is not None:
                self._put_chunk(opened, *transfer)
        except OSError:
            self._disconnected(opened)
        return True

    def _has_to_send(self) -> bool:
        return self._error is not None or bool(self._connected and (self._control or self._transfers))

    def _put(self, stream: Stream, data: bytes) -> None:
        if data:
            stream.write(data)
            self._unanswered = min(self._unanswered + len(data), BUFFERED)

    def _put_chunk(self, opened: Opened, request: Request[Any], chunks: Iterator[bytes]) -> None:
        if request.id not in self._requests:
            return
        try:
            chunk = next(chunks, None)
        except OSError as error:  # the local file, not the stream
            self._give_up(request, error)
            return
        if chunk is None:
            return
        self._put(opened.stream, chunk)
        self._moved = time.monotonic()  # an upload that goes on is a sign of life; our own pings are none
        with self._changed:
            if opened is self._opened and self._connected:
                self._transfers.append((request, chunks))

    def _disconnected(self, opened: Opened) -> None:
        with self._changed:
            if opened is self._opened:
                self._connected = False
        opened.stream.close()

    # the reader thread

    def _read(self) -> None:
        try:
            while self._error is None:
                opened = self._opened
                self._serve(opened)
                cause = opened.stream.cause() or "the host no longer answered"
                with self._changed:
                    self._connected = False
                opened.stream.close()
                if self._error is None:
                    self._connect_again(cause)
        except Exception as error:  # noqa: BLE001 - the thread's outermost frame: whoever waits for an answer must hear of it
            self._die(error)

    def _serve(self, opened: Opened) -> None:
        with contextlib.suppress(OSError):
            while (frame := opened.reader.frame()) is not None:
                self._heard = self._moved = time.monotonic()
                self._unanswered = 0
                self._pinged = None
                self._answer(*frame)

    def _answer(self, header: Header, body: bytes) -> None:
        request = self._requests.get(header["id"])
        if request is None:
            return
        if header.get("end"):
            self._end(request, header, body)
            return
        try:
            request.take(header, body)
        except Exception as error:  # noqa: BLE001 - the caller's own function: its error goes to its reply, others go on
            self._give_up(request, error)

    def _end(self, request: Request[Any], header: Header, body: bytes) -> None:
        with self._changed:
            self._requests.pop(request.id, None)
            if not header["ok"]:
                self._note_failure(request.id, header["error"]["message"])
        if header["ok"]:
            request.finish(header, body)
        else:
            request.fail(error_of(self.host, header["error"]), header)

    def _give_up(self, request: Request[Any], error: Exception) -> None:
        """End the request with an error of this side."""
        request.fail(error)
        self.cancel(request.id)

    def _connect_again(self, cause: str) -> None:
        """Once somebody wants something: try until it works, is refused for good, or the link is closed."""
        with self._changed:
            for request in list(self._requests.values()):
                if not request.resend():
                    del self._requests[request.id]
            while not self._requests and self._error is None:
                self._changed.wait()
        self._tell(State("reconnecting", time.time(), cause))
        for attempt in itertools.count():
            if self._error is not None or self._try_to_connect(attempt):
                return

    def _try_to_connect(self, attempt: int) -> bool:
        pause = min(PAUSE_FIRST_S * 2**attempt, PAUSE_LAST_S) if attempt else 0.0
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None, pause * random.uniform(0.5, 1.0))
        if self._error is not None:
            return True
        try:
            opened = self._opener()
        except (AuthenticationError, HostKeyError, ConfigError) as error:
            self._die(error)
            return True
        except Unreachable as error:
            self._tell(State("reconnecting", self.state.since, error.message))
            return False
        except HostError as error:
            if attempt + 1 >= BOOT_FAILURES:
                self._die(error)
            return attempt + 1 >= BOOT_FAILURES
        self._connected_anew(opened)
        return True

    def _connected_anew(self, opened: Opened) -> None:
        self._on_hello(opened.hello)
        with self._changed:
            closed = self._error is not None
            self._opened = opened
            self._connected = not closed
            self._heard = self._moved = time.monotonic()
            self._unanswered = 0
            self._pinged = None
            self._control.clear()
            self._transfers.clear()
            for request in self._requests.values():
                self._enqueue(request)
            self._changed.notify_all()
        if closed:
            opened.stream.close()
        else:
            self._tell(State("connected", time.time()))

    def _tell(self, state: State) -> None:
        self.state = state
        for listener in list(self._listeners):
            listener(state)

    def _die(self, error: BaseException) -> None:
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            self._connected = False
            requests = list(self._requests.values())
            self._requests.clear()
            self._changed.notify_all()
        self._opened.stream.close()
        for request in requests:
            request.fail(error)
        self._tell(State("closed", time.time(), str(error)))

    # the watchdog's thread

    def check(self, now: float) -> None:
        """Ask for a sign of life when it was quiet; close a stream that gives none."""
        if os.getpid() != self._pid:  # the stream is the parent's
            return
        with self._changed:
            if not self._connected:
                return
            if self._pinged is None:  # one question is enough: a second one would be no sign of life either
                if now - self._heard > (QUIET_S if self._requests else IDLE_PING_S):
                    self._pinged = now
                    self._control.append(pack({"id": PING_ID, "do": "ping"}))
                    self._changed.notify_all()
                return
            late = self._unanswered / SLOWEST
            if now - max(self._heard, self._moved) < DEAD_S + late or now - self._pinged < ANSWER_S + late:
                return
            opened = self._opened
            self._connected = False
        opened.stream.close()


class _Watchdog:
    """One thread for all links of a process."""

    PERIOD_S = 3.0

    def __init__(self) -> None:
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._pid = 0

    def add(self, link: Link) -> None:
        with self._lock:
            self._links.add(link)
            if self._pid != os.getpid():
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="clusterfn-watchdog", daemon=True).start()

    def _run(self) -> None:
        sleep = threading.Event()
        while True:
            sleep.wait(self.PERIOD_S)
            with self._lock:
                links = list(self._links)
            for link in links:
                link.check(time.monotonic())


_watchdog = _Watchdog()
