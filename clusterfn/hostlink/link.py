"""The link to one host: open requests over one stream, sent again when the stream has broken.

A reader thread gives answers to their requests, and connects anew when the stream ends; a writer thread sends. Requests
go before the chunks of transfers, and open transfers take turns. Called by `host`.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clusterfn.errors import AuthenticationError, ClusterfnError, ConfigError, HostError, HostKeyError, Unreachable
from clusterfn.hostlink import watchdog
from clusterfn.hostlink.boot import HELLO_ID, Opened
from clusterfn.hostlink.failures import error_of
from clusterfn.hostlink.frames import Header, no_frame, pack
from clusterfn.hostlink.pulse import ASK, DEAD, Pulse
from clusterfn.hostlink.requests import Request
from clusterfn.spec import Host
from clusterfn.transport import Stream, asking, is_held

PAUSE_FIRST_S, PAUSE_LAST_S = 0.5, 30.0
PING_ID = 2**31
LOCAL_LOOK_S = 2.0  # between two looks for a held connection, at this machine alone
FAILURES_KEPT = 10_000
BOOT_FAILURES = 5
GARBLED = 3  # streams in a row that broke soon, on what was no frame
SOON_S = 10.0
_log = logging.getLogger("clusterfn")


@dataclass(frozen=True)
class State:
    """How the link stands, since when (time.time()), and why.

    "connected", "reconnecting", "waiting" (for a person, who has to log in again) or "closed".
    """

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
        self._last = HELLO_ID
        self._answering: set[int] = set()  # the threads on which no answer can be waited for
        self._requests: dict[int, Request[Any]] = {}
        self._unsent: set[int] = set()  # those made while there was no connection
        self._failures: collections.OrderedDict[int, str] = collections.OrderedDict()
        self._control: collections.deque[bytes] = collections.deque()
        self._transfers: collections.deque[tuple[Request[Any], Iterator[bytes]]] = collections.deque()
        self._listeners: list[Callable[[State], None]] = []
        self._pid = os.getpid()
        self._opened = opened
        self._connected = True
        self._error: ClusterfnError | None = None
        self._needs_you: AuthenticationError | None = None
        self._pulse = Pulse(time.monotonic())
        self.state = State("connected", time.time())
        for loop in (self._read, self._write):
            name = f"clusterfn-{loop.__name__.strip('_')}-{host.name}"
            threading.Thread(target=loop, name=name, daemon=True).start()
        watchdog.add(self)

    # requests

    def send(self, request: Request[Any]) -> None:
        """Register the request and have it sent; waits for nothing.

        Raises:
            HostError: The link is closed, refused for good, or belongs to the parent process.
        AuthenticationError: It waits for a person to log in again.
        """
        self._check()  # before the lock too: in a forked child it may be held for ever
        with self._changed:
            self._check()
            number = self._number()
            request.register(number, self.host.name, self._answering)
            request.cancel = lambda: self.cancel(number)
            self._requests[request.id] = request
            skipped = next((self._failures[number] for number in request.after if number in self._failures), None)
            if skipped is None and self._connected:
                self._enqueue(request)
            elif skipped is None:
                self._unsent.add(request.id)
            self._changed.notify_all()
        if skipped is not None:
            self._end(request, {"ok": False, "error": {"kind": "skipped", "message": skipped}}, b"")

    def cancel(self, number: int) -> None:
        """Forget the request of that number, and tell the host to stop it."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            request = self._requests.pop(number, None)
            if request is None:
                return
            self._note_failure(request.id, "it was cancelled")
            if self._connected:
                self._control.append(pack({"id": self._number(), "do": "stop", "target": request.id}))
                self._changed.notify_all()
        request.fail(concurrent.futures.CancelledError())

    def close(self) -> None:
        """End the stream and every open request."""
        if os.getpid() == self._pid:
            self._die(HostError(f"The connection to {self.host.name} was closed", host=self.host.name))

    def usable(self) -> bool:
        """Whether requests can be sent: not closed, not refused for good, not a parent's."""
        return self._error is None and os.getpid() == self._pid

    def on_state(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Tell `listener` each change, on the reader thread, until the function that this returns is called."""
        self._listeners.append(listener)

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return end

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise HostError(
                f"The connection to {self.host.name} belongs to process {self._pid}, which forked this one",
                host=self.host.name,
                hint="connect again in this process, or start it with the spawn method",
            )
        if self._error is not None:
            raise self._error.with_traceback(None)  # or it would grow with each that asks
        if self._needs_you is not None and not is_held(self.host):
            raise self._needs_you.with_traceback(None)

    def _number(self) -> int:
        self._last += 1
        return self._last

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
        self._answering.add(threading.get_ident())
        try:
            while self._write_a_turn():
                pass
        except BaseException as error:  # noqa: BLE001 - the thread's outermost frame: whoever waits must hear of it
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
            self._pulse.send(len(data))

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
        self._pulse.moved = time.monotonic()  # an upload that goes on is a sign of life; our own pings are none
        with self._changed:
            if opened is self._opened and self._connected:
                self._transfers.append((request, chunks))

    def _disconnected(self, opened: Opened) -> None:
        with self._changed:
            if opened is self._opened:
                self._connected = False
        self._hang_up(opened)

    def _hang_up(self, opened: Opened) -> None:
        try:
            opened.stream.close()
        except Exception:  # noqa: BLE001 - it is of no use any more, whatever it says; who waits for an answer must go on
            _log.debug("the stream to %s could not be closed", self.host.name, exc_info=True)

    # the reader thread

    def _read(self) -> None:
        self._answering.add(threading.get_ident())
        brief = garbled = 0  # streams in a row
        try:
            while self._error is None:
                opened, began = self._opened, time.monotonic()
                broken = self._serve(opened)
                cause = broken.message if broken else opened.stream.cause() or "the host no longer answered"
                with self._changed:
                    self._connected = False
                self._hang_up(opened)
                brief = brief + 1 if time.monotonic() - began < SOON_S else 0
                garbled = min(garbled, brief) + 1 if broken else 0
                if broken and garbled >= GARBLED:
                    self._die(broken)
                if self._error is None:
                    self._connect_again(cause, max(0, brief - 1))
        except BaseException as error:  # noqa: BLE001 - the outermost frame: whoever waits for an answer must hear of it
            self._die(error)

    def _serve(self, opened: Opened) -> HostError | None:
        """Until the stream has ended; the error if that is because something came that is no frame."""
        try:
            while (frame := opened.reader.frame()) is not None:
                self._pulse.hear(time.monotonic())
                self._answer(*frame)
        except OSError:
            return None
        except HostError as error:
            error.host = self.host.name
            return error
        return None

    def _answer(self, header: Header, body: bytes) -> None:
        request = self._requests.get(header["id"])
        if request is None:
            if not 0 < header["id"] <= self._last and header["id"] != PING_ID:
                raise no_frame("it answers what nobody asked", repr(header).encode())
            return  # the answer to what has been cancelled, or to a ping
        if header.get("end"):
            self._end(request, header, body)
            return
        try:
            request.take(header, body)
        except BaseException as error:  # noqa: BLE001 - the caller's own function: its error goes to its reply
            self._give_up(request, error)

    def _end(self, request: Request[Any], header: Header, body: bytes) -> None:
        with self._changed:
            self._requests.pop(request.id, None)
            if not header["ok"]:
                self._note_failure(request.id, header["error"]["message"])
        try:
            if header["ok"]:
                request.finish(header, body)
            else:
                request.fail(error_of(self.host, header["error"]), header)
        except Exception as error:  # noqa: BLE001 - a host that leaves out what belongs there: this request alone fails
            request.fail(self._in_words(error, f"{self.host.name} answered `{request.do}` with what makes no sense"))

    def _give_up(self, request: Request[Any], error: BaseException) -> None:
        """End the request with an error of this side."""
        request.fail(error)
        self.cancel(request.id)

    def _in_words(self, error: BaseException, message: str) -> ClusterfnError:
        """An error of another kind as one of ours."""
        if isinstance(error, ClusterfnError):
            return error
        made = HostError(message, host=self.host.name, evidence=[f"{type(error).__name__}: {error}"])
        made.__cause__ = error
        return made

    def _connect_again(self, cause: str, waits: int) -> None:
        """Once somebody wants something: try until it works, is refused for good, or the link is closed.

        Args:
            waits: How many pauses there have been: after streams that broke soon, the next is not made at once.
        """
        with self._changed:
            for request in list(self._requests.values()):
                if not request.resend():
                    del self._requests[request.id]
            while not self._requests and self._error is None:
                self._changed.wait()
        self._tell(State("reconnecting", time.time(), cause))
        attempt = 0
        while self._error is None and not self._try_to_connect(attempt, min(attempt + waits, 20)):
            attempt += 1
            if self._needs_you is not None:
                self._wait_for_a_person()
                attempt = waits = 0

    def _try_to_connect(self, attempt: int, waits: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None, pause_s(waits))
        if self._error is not None:
            return True
        try:
            opened = self._opener()
        except AuthenticationError:
            self._needs_you = asking.needs_you(self.host.name)
            return False
        except (HostKeyError, ConfigError) as error:
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

    def _wait_for_a_person(self) -> None:
        """A refused login is never tried again by itself: until `clusterfn login` holds a connection, or the end.

        What the host has been asked stays open, for its jobs go on, and so does whoever waits for them. What it has
        not been asked yet is refused.
        """
        assert self._needs_you is not None
        self._tell(State("waiting", time.time(), self._needs_you.message))
        with self._changed:
            refused = [self._requests.pop(number) for number in self._unsent if number in self._requests]
            self._unsent.clear()
        for request in refused:
            request.fail(self._needs_you)
        while self._error is None and not is_held(self.host):
            with self._changed:
                # a request that comes now has found one
                self._changed.wait_for(lambda: self._error is not None or bool(self._unsent), LOCAL_LOOK_S)
        self._needs_you = None
        if self._error is None:
            self._tell(State("reconnecting", time.time(), "somebody has logged in again"))

    def _connected_anew(self, opened: Opened) -> None:
        self._on_hello(opened.hello)
        with self._changed:
            closed = self._error is not None
            self._opened = opened
            self._connected = not closed
            self._pulse.hear(time.monotonic())
            self._control.clear()
            self._transfers.clear()
            self._unsent.clear()
            for request in self._requests.values():
                self._enqueue(request)
            self._changed.notify_all()
        if closed:
            self._hang_up(opened)
        else:
            self._tell(State("connected", time.time()))

    def _tell(self, state: State) -> None:
        self.state = state
        for listener in list(self._listeners):
            try:
                listener(state)
            except BaseException:  # noqa: BLE001 - the caller's own function: the others are told, the reader goes on
                _log.exception("a listener failed when it was told that the connection to %s is %s",
                               self.host.name, state.name)  # fmt: skip

    def _die(self, error: BaseException) -> None:
        """End every open request with the error; none can be made any more."""
        with self._changed:
            if self._error is not None:
                return
            self._error = self._in_words(error, f"The connection to {self.host.name} broke here")
            self._connected = False
            requests = list(self._requests.values())
            self._requests.clear()
            self._changed.notify_all()
        self._hang_up(self._opened)
        with self._without_waiting():
            for request in requests:
                request.fail(self._error)
            self._tell(State("closed", time.time(), str(self._error)))

    @contextlib.contextmanager
    def _without_waiting(self) -> Iterator[None]:
        """A callback that this thread calls now cannot wait for an answer: this thread is to bring it."""
        here = threading.get_ident()
        new = here not in self._answering
        self._answering.add(here)
        try:
            yield
        finally:
            if new:
                self._answering.discard(here)

    # the watchdog's thread

    def check(self, now: float) -> None:
        """Ask for a sign of life when it was quiet; close a stream that gives none."""
        if os.getpid() != self._pid:  # the stream is the parent's
            return
        with self._changed:
            if not self._connected:
                return
            seen = self._pulse.look(now, bool(self._requests))
            if seen == ASK:
                self._control.append(pack({"id": PING_ID, "do": "ping"}))
                self._changed.notify_all()
            if seen != DEAD:
                return
            opened = self._opened
            self._connected = False
        self._hang_up(opened)


def pause_s(waits: int) -> float:
    """How long to wait after so many waits: twice as long each time, and never as long as another client does."""
    longest = min(PAUSE_FIRST_S * 2**waits, PAUSE_LAST_S) if waits else 0.0
    return longest * random.uniform(0.5, 1.0)
