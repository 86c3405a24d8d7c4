"""The one loop: reads requests, lets each do its part, sends what they have to say."""

import heapq
import os
import select
import signal
import sys
import time
from collections import OrderedDict

from .failures import Failure
from .files import CHUNK
from .frames import Inbox
from .noticing import Watch
from .outbox import FULL, Outbox
from .verbs import VERBS, Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Set, Tuple

    from .frames import Header
    from .request import Request

FAILURES_KEPT = 10_000  # a client names what failed only while the answer is on its way
SILENCE_S = 20 * 60.0  # the client pings every few minutes; without a word for so long it is gone


class Agent:
    """The loop: reads requests, lets each do its part, sends what they have to say."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.out = Outbox(sink)
        self.inbox = Inbox()
        self.requests: "Dict[int, Request]" = {}
        self.failed: "OrderedDict[int, str]" = OrderedDict()
        self.children: "Dict[int, Callable[[int], None]]" = {}
        self.readers: "Dict[int, Callable[[int], None]]" = {}
        self.writers: "Dict[int, Callable[[int], None]]" = {}
        self.timers: "List[Tuple[float, int, Callable[[], None]]]" = []
        self.counter = 0
        self.swept: "Set[str]" = set()
        self.watch = Watch(self)
        self.root = self.machine = ""
        self.umask = 0o077
        self.heard = time.monotonic()
        self.open = True

    def at(self, seconds: float, action: "Callable[[], None]") -> None:
        self.counter += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.counter, action))

    def take(self, header: "Header", body: bytes) -> None:
        """One frame from the client.

        Raises:
            ValueError: It is no request.
        """
        if not isinstance(header, dict) or not isinstance(header.get("id"), int):
            raise ValueError("a request without an id")
        request = self.requests.get(header["id"])
        if header.get("do") == "chunk":
            if request is not None:
                upload = request
                upload.safely(lambda: upload.chunk(body, bool(header.get("last"))))
            return
        new = VERBS.get(str(header.get("do")), Unknown)(self, header, body)
        self.requests[new.id] = new
        new.safely(new.begin)
        new.safely(lambda: self.put_after(new))
        self.maybe_start(new)

    def put_after(self, new: "Request") -> None:
        for number in new.header.get("after") or ():
            if number in self.failed:
                raise Failure("skipped", self.failed[number])
            if number in self.requests:
                new.after.add(number)

    def maybe_start(self, request: "Request") -> None:
        if not request.after and not request.started and not request.ended:
            request.started = True
            request.safely(request.start)

    def forget(self, request: "Request", error: "Optional[Header]") -> None:
        """It has ended: those that come after it start, or are skipped."""
        self.requests.pop(request.id, None)
        if error:
            self.failed[request.id] = str(error["message"])
            while len(self.failed) > FAILURES_KEPT:
                self.failed.popitem(last=False)
        for other in list(self.requests.values()):
            if request.id not in other.after:
                continue
            other.after.discard(request.id)
            if error:
                other.fail(Failure("skipped", str(error["message"])))
            self.maybe_start(other)

    def reap(self, _fd: int = -1) -> None:
        for pid in list(self.children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.children.pop(pid)(status)

    def read(self, _fd: int) -> None:
        try:
            piece = os.read(self.source, CHUNK)
        except BlockingIOError:
            return
        self.open = bool(piece)
        self.heard = time.monotonic()
        for header, body in self.inbox.feed(piece):
            self.take(header, body)

    def due(self) -> float:
        """Seconds until something is to be done without being asked."""
        soon = [self.heard + SILENCE_S]
        if self.timers:
            soon.append(self.timers[0][0])
        if self.watch.open:
            soon.append(self.watch.next)
        return max(0.0, min(soon) - time.monotonic())

    def turn(self) -> None:
        poll = select.poll()
        for fd in self.readers:
            if fd != self.source or self.out.size < FULL:
                poll.register(fd, select.POLLIN)
        for fd in self.writers:
            poll.register(fd, select.POLLOUT)
        if self.out.pending():
            poll.register(self.out.fd, select.POLLOUT)
        for fd, _ in poll.poll(int(self.due() * 1000) + 1):
            handler = self.readers.get(fd) or self.writers.get(fd)
            if handler:
                handler(fd)
        self.on_time()
        self.out.flush()

    def on_time(self) -> None:
        now = time.monotonic()
        while self.timers and self.timers[0][0] <= now:
            heapq.heappop(self.timers)[2]()
        self.watch.poll(now)
        self.open = self.open and now - self.heard < SILENCE_S

    def serve(self, woken: int) -> None:
        """Until the client is gone; what it left open is undone, what it spawned goes on."""
        self.readers[self.source] = self.read
        self.readers[woken] = self.woken
        try:
            while self.open:
                self.turn()
        except (BrokenPipeError, ConnectionResetError):
            self.open = False
        finally:
            for request in list(self.requests.values()):
                request.release()

    def woken(self, fd: int) -> None:
        """A signal came: a child ended, or somebody wants us to go."""
        signals = os.read(fd, 512)
        self.open = self.open and not any(number in (signal.SIGHUP, signal.SIGTERM) for number in signals)
        self.reap()


def wake_on_signals() -> int:
    """An fd that becomes readable when a child ends or when we are asked to go."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waker)
    return woken


def main(marker: str) -> None:
    """Serve stdin and stdout until the client is gone. The marker ends whatever the login shell has printed."""
    umask = os.umask(0o077)
    os.chdir("/")
    woken = wake_on_signals()
    os.write(1, marker.encode() + b"\n")
    os.set_blocking(1, False)
    agent = Agent(0, 1)
    agent.umask = umask
    agent.serve(woken)
    sys.stdout = sys.stderr = None
    os._exit(0)
