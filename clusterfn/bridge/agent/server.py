"""The agent's event loop: read requests, dispatch them to their handlers, write the answers."""

import contextlib
import os
import select
import signal
import sys
import time
from collections import OrderedDict, deque

from . import byte_code  # noqa: F401 - importing it is what changes this process
from .downloads import FileHandler, PathsHandler, PatternHandler
from .facts import HelloHandler
from .files import CHUNK
from .frames import FULL, TURN_S, USUAL, widen_pipe
from .growing_files import FollowHandler, StillHandler
from .handler import AgentServices, Failure, RequestHandler, either
from .job_template import JobTemplates
from .processes import RepeatHandler
from .runs import RunHandler, SpawnHandler
from .sockets import ProgramHandler, SocketHandler
from .uploads import PutHandler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, Dict, Iterator, List, Optional, Tuple

    from .forked import ForkedJob
    from .frames import Header

# A client refers to a failed request only while the answer is on its way, so older failures can be forgotten.
FAILURES_KEPT = 10_000
# The client pings every few minutes. One that is silent for this long is gone, although its connection seems open.
SILENCE_S = 20 * 60.0


class StopHandler(RequestHandler):
    def start(self) -> None:
        target = self.agent.requests.get(self.header["target"])
        if target is not None:
            target.safely(target.stop)
        self.end()


class UnknownHandler(RequestHandler):
    def start(self) -> None:
        raise Failure("bad", "this agent has no %r" % self.header.get("do"))


HANDLERS: "Dict[str, Callable[[Agent, Header, bytes], RequestHandler]]" = {
    "hello": HelloHandler, "have": either("paths", PathsHandler, PatternHandler), "put": PutHandler,
    "get": FileHandler, "follow": either("still", StillHandler, FollowHandler),
    "run": RunHandler, "spawn": SpawnHandler, "repeat": RepeatHandler,
    "converse": either("path", SocketHandler, ProgramHandler), "stop": StopHandler,
}  # fmt: skip


class Agent(AgentServices):
    """Reads requests, dispatches them to their handlers, and writes the answers: one thread, one poll."""

    def __init__(self, source: int, sink: int) -> None:
        AgentServices.__init__(self, sink)
        self.source = source
        self.received = memoryview(bytearray(CHUNK))
        # The frames of what was read that have not been dispatched yet: nothing more is read before.
        self.frames: "Optional[Iterator[Tuple[Header, bytes]]]" = None
        # Requests that wait for the end of another one, by that one's number.
        self.waiting: "Dict[int, List[RequestHandler]]" = {}
        # Requests whose last dependency has ended; each turn of the loop starts some of them.
        self.ready: "Deque[RequestHandler]" = deque()
        self.failed: "OrderedDict[int, str]" = OrderedDict()
        self.last_received = time.monotonic()
        self.templates = JobTemplates(self)
        self.open = True
        # Whether SIGTERM has asked this process to end, whatever it has left to do.
        self.must_end = False

    def dispatch(self, header: "Header", body: bytes) -> None:
        """Dispatch one frame from the client; raise ValueError if it is not a request."""
        if not isinstance(header, dict) or not isinstance(header.get("id"), int):
            raise ValueError("a request without an id")
        request = self.requests.get(header["id"])
        if header.get("do") == "chunk":
            if request is not None:
                taker = request
                taker.safely(lambda: taker.chunk(body, header))
            return
        new = HANDLERS.get(str(header.get("do")), UnknownHandler)(self, header, body)
        self.requests[new.id] = new
        new.safely(new.begin)
        new.safely(lambda: self.set_dependencies(new))
        self.maybe_start(new)

    def set_dependencies(self, new: "RequestHandler") -> None:
        for number in new.header.get("after") or ():
            if number in self.failed:
                raise Failure("skipped", self.failed[number])
            if number in self.requests:
                new.after.add(number)
                self.waiting.setdefault(number, []).append(new)

    def maybe_start(self, request: "RequestHandler") -> None:
        if not request.after and not request.started and not request.ended:
            request.started = True
            request.safely(request.start)

    def forget(self, request: "RequestHandler", error: "Optional[Header]") -> None:
        """Remove a request that has ended: those that waited for it are started in a turn of the loop, or skipped."""
        self.requests.pop(request.id, None)
        if error:
            self.failed[request.id] = str(error["message"])
            while len(self.failed) > FAILURES_KEPT:
                self.failed.popitem(last=False)
        # Only the requests that wait for this one are visited, because there may be thousands of others.
        for other in self.waiting.pop(request.id, ()):
            other.after.discard(request.id)
            if error:
                other.fail(Failure("skipped", str(error["message"])))
            else:
                self.ready.append(other)

    def forked_job(self, header: "Header") -> "Optional[ForkedJob]":
        return self.templates.forked_job(header)

    def reap(self, _fd: int = -1) -> None:
        for pid in list(self.children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.children.pop(pid)(status)

    def read(self, _fd: int) -> None:
        try:
            # Each read goes into the same memory, because new memory of this size costs a page fault for every 4 KB.
            size = os.readv(self.source, [self.received])
        except BlockingIOError:
            return
        if size >= USUAL:
            widen_pipe(self.source)
        self.open = bool(size)
        self.last_received = time.monotonic()
        self.frames = self.inbox.feed(self.received[:size])
        self.work()

    def work(self) -> None:
        """Start requests whose turn has come, then dispatch what was read, for a turn.

        Hundreds may come at once, or wait for the same, and answers must not wait for all of them.
        """
        until = time.monotonic() + TURN_S
        while self.has_work() and time.monotonic() < until:
            if self.ready:
                self.maybe_start(self.ready.popleft())
                continue
            frame = next(self.frames or iter(()), None)
            if frame is None:
                self.frames = None
            else:
                self.dispatch(*frame)

    def has_work(self) -> bool:
        return self.out.size < FULL and (bool(self.ready) or self.frames is not None)

    def seconds_until_due(self) -> float:
        """Return the seconds until the next timer, poll or timeout."""
        soon = [self.last_received + SILENCE_S, self.timers.first_due()]
        if self.watcher.open:
            soon.append(self.watcher.next_poll)
        return max(0.0, min(soon) - time.monotonic())

    def turn(self) -> None:
        poll = select.poll()
        for fd in self.readers:
            if fd != self.source or not (self.ready or self.frames is not None or self.out.size >= FULL):
                poll.register(fd, select.POLLIN)
        for fd in self.writers:
            poll.register(fd, select.POLLOUT)
        if self.out.pending():
            poll.register(self.out.fd, select.POLLOUT)
        for fd, _ in poll.poll(0 if self.has_work() else int(self.seconds_until_due() * 1000) + 1):
            handler = self.readers.get(fd) or self.writers.get(fd)
            if handler:
                handler(fd)
        self.work()
        now = time.monotonic()
        self.timers.run_due(now)
        self.watcher.poll(now)
        self.open = self.open and now - self.last_received < SILENCE_S
        self.out.flush()

    def serve(self, woken: int) -> None:
        """Serve until the client disconnects; then cancel its open requests, but not what it spawned or is to spawn."""
        self.readers[self.source] = self.read
        self.readers[woken] = self.on_signals
        try:
            while self.open:
                self.turn()
        except (BrokenPipeError, ConnectionResetError):
            self.open = False
        finally:
            self.templates.close()
            for request in list(self.requests.values()):
                with contextlib.suppress(OSError):
                    # An error of one request must not keep the others from releasing their locks and programs.
                    request.release()

    def on_signals(self, fd: int) -> None:
        """Handle signals: a child ended, or the agent is asked to exit."""
        signals = os.read(fd, 512)
        self.must_end = self.must_end or signal.SIGTERM in signals
        self.open = self.open and not self.must_end and signal.SIGHUP not in signals
        self.reap()


def wake_on_signals() -> int:
    """Return an fd that becomes readable when a child ends or when the agent is asked to exit."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waker)
    return woken


def start_the_rest(agent: Agent, woken: int) -> None:
    """Start the jobs that wait for their turn, in a process without a client: theirs may never come back."""
    left = deque(request for request in agent.requests.values() if isinstance(request, SpawnHandler) and request.waits)
    if not left or not part_from_client():
        return
    # The timers and readers of the first agent belong to requests that ended with the client.
    rest = Agent(0, 1)
    rest.root, rest.machine, rest.trusted = agent.root, agent.machine, agent.trusted
    rest.templates.close()
    rest.readers[woken] = rest.on_signals
    for request in left:
        request.agent = rest
        request.start()
    while left and rest.open:
        if not left[0].waits:
            left.popleft()
            continue
        rest.last_received = time.monotonic()
        rest.turn()


def part_from_client() -> bool:
    """Continue in a fork that holds nothing of the connection; return whether this process is the one that continues.

    The process that has started the agent sees it end.
    """
    try:
        if os.fork():
            return False
    except OSError:
        # The user may have no process left, for which the jobs wait. Then this process continues.
        pass
    with contextlib.suppress(OSError):
        # It leads a session already.
        os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    return True


def main(marker: str) -> None:
    """Serve stdin and stdout until the client disconnects. The marker ends what the login shell printed."""
    umask = os.umask(0o077)
    os.chdir("/")
    woken = wake_on_signals()
    os.write(1, marker.encode() + b"\n")
    os.set_blocking(1, False)
    agent = Agent(0, 1)
    agent.umask = umask
    agent.serve(woken)
    if not agent.must_end:
        start_the_rest(agent, woken)
    sys.stdout = sys.stderr = None
    os._exit(0)
