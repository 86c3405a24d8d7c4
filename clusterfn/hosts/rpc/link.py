"""The link to one host: open requests over one stream, sent again when the stream has broken.

A reader thread gives answers to their requests, and reconnects when the stream ends; a writer thread sends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, ConfigError, HostError, HostKeyError, Unreachable
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.frames import AgentStream, error_of, wrapped
from clusterfn.hosts.rpc.link_stream import (
    ASK,
    DEAD,
    PING_ID,
    AnswerReader,
    LinkStream,
    PendingRequests,
    RequestSender,
)
from clusterfn.hosts.rpc.reply import OF_PARENT, AnsweringLink, Reply, RequestCancelled
from clusterfn.hosts.rpc.requests import OpenRequest
from clusterfn.hosts.transports import can_hold, is_held, prompts

# The pause between two looks for a held connection. They ask only this machine, so they may be frequent.
LOCAL_LOOK_S = 2.0
# Give up after so many streams in a row that broke soon and sent invalid frames: the cause will not go away.
GARBLED = 3
SOON_S = 10.0
MOST_WAITS = 20
# While there is no connection, callers wait once so many requests are queued: those of about a thousand jobs.
MOST_UNSENT = 4_000
PERIOD_S = 3.0
PAUSE_FIRST_S, PAUSE_LAST_S = 0.5, 30.0
# A host that has just booted accepts logins before home folders and Python are mounted. Only later is this an error.
NO_AGENT_S = 600.0
# The agent's word for a root that another user could change. No retry makes it safe.
_UNSAFE = "refused"
_CANCELLED = {"kind": "skipped", "message": "it was cancelled"}

_log = logging.getLogger("clusterfn")


class ConnectionState(NamedTuple):
    """The state of a connection, since when (time.time()), and why.

    "connected", "reconnecting", "waiting" (for a person, who has to log in again) or "closed".
    """

    name: str
    since: float
    cause: str = ""


def describe_trouble(host: str, state: ConnectionState) -> str:
    """Say why nothing comes from the host; "" while it is connected."""
    if state.name != "reconnecting":
        return state.cause if state.name == "waiting" else ""
    since = time.strftime("%H:%M:%S", time.localtime(state.since))
    return f"no connection to {host} since {since}, reconnecting: {state.cause}"


class Link:
    """The link to one host.

    Args:
        opener: Makes a stream whose agent has said hello.
        opened: The first one.
    """

    def __init__(self, host: Host, opener: Callable[[], AgentStream], opened: AgentStream) -> None:
        self.host = host
        self.line = LinkStream(host.name, opened)
        self._opener = opener
        self._requests = PendingRequests()
        self._answers = AnswerReader(host, self.line, self._requests, self.cancel)
        self._sender = RequestSender(self.line, self._requests.__contains__, self._answers.give_up)
        self.state = ConnectionState("connected", time.time())
        self._answering = AnsweringLink(
            host.name, self._answers.threads, lambda: describe_trouble(self.host.name, self.state)
        )
        # A dict, because thousands of jobs listen, and each must be able to stop at once.
        self._listeners: dict[object, Callable[[ConnectionState], None]] = {}
        self._tries = Tries()
        self._pid = os.getpid()
        self._needs_you: AuthenticationError | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"clusterfn-{name}-{host.name}", daemon=True)
            for name, work in (("read", self._read), ("write", self._sender.run))
        ]
        for thread in self._threads:
            thread.start()
        loop.begin(watch(weakref.ref(self)))

    # The methods below are for any thread that sends requests.

    def ask(self, request: OpenRequest[Any]) -> None:
        """Register the request and have it sent; waits for nothing.

        Raises:
            HostError: The link is closed, refused for good, or belongs to the parent process.
            AuthenticationError: It waits for a person to log in again.
        """
        # Check before taking the lock, too: in a forked child, a thread that does not exist there may hold it forever.
        self._check()
        with self.line.changed:
            self._check()
            number = self._add(request)
            failed = self._requests.failed_before(request)
            if failed is None and self.line.connected:
                self._sender.send(request)
            elif failed is None:
                self._requests.unsent.add(number)
            self.line.changed.notify_all()
        if failed is not None:
            request.fail(error_of(self.host, failed))

    def _add(self, request: OpenRequest[Any]) -> int:
        number = self._requests.number()
        request.register(number, self._answering)
        request.cancel = lambda: self.cancel(number)
        # Refer to the request by its number: a reference to it would be a circle that keeps large arguments in memory.
        request.upload = lambda chunks: self._upload(number, chunks)
        self._requests[number] = request
        return number

    def _upload(self, number: int, chunks: Iterator[bytes]) -> None:
        """Send the chunks of the open request of that number, which the host has asked for."""
        with self.line.changed:
            if self.line.connected and number in self._requests:
                self._sender.transfer(self._requests[number], chunks)

    def cancel(self, number: int) -> None:
        """Forget the request of that number, and ask the host to stop it."""
        if os.getpid() != self._pid:
            return
        with self.line.changed:
            if number not in self._requests:
                return
            request = self._requests.remove(number, _CANCELLED)
            if self.line.connected:
                self._sender.say({"id": self._requests.number(), "do": "stop", "target": number})
        if request is not None:
            request.fail(RequestCancelled(f"the request to {self.host.name} was cancelled"))

    def write(self, connected: Reply[None], data: bytes) -> None:
        """Send bytes to a socket or a program, after an answer to the first; they are lost if it is gone."""
        if os.getpid() != self._pid:
            return
        with self.line.changed:
            if self.line.connected and connected.id in self._requests:
                self._sender.say({"id": connected.id, "do": "chunk"}, data)

    def close(self) -> None:
        """End the stream. Open requests fail; what was spawned keeps running."""
        if os.getpid() == self._pid:
            self._die(HostError(f"The connection to {self.host.name} was closed", host=self.host.name))

    def join_until(self, until: float) -> None:
        """Wait for the threads of a closed link until then (time.monotonic()): one may run a function of the user."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def usable(self) -> bool:
        """Whether requests can be sent: not closed, not refused for good, not a parent process's."""
        return self.line.over is None and os.getpid() == self._pid

    def answers_here(self) -> bool:
        """Whether this thread brings the answers of this connection, so that it cannot wait for them."""
        return threading.get_ident() in self._answers.threads

    def has_room(self, within_s: float) -> bool:
        """Wait until little is queued for the host; return False if too much of it is left after that time.

        Waits for nothing on a thread that brings answers, or if the connection has ended.
        """
        if not self.usable() or self.answers_here():
            return True
        unsent, sender = self._requests.unsent, self._sender
        return self.line.wait_until(lambda: len(unsent) < MOST_UNSENT and not sender.is_full(), within_s)

    def on_state(self, listener: Callable[[ConnectionState], None]) -> Callable[[], object]:
        """Call `listener` when the connection breaks and when it is back, on the reader thread.

        Returns:
            What ends that.
        """
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None)

    def _set_state(self, name: str, cause: str = "", since: float | None = None) -> None:
        self.state = ConnectionState(name, time.time() if since is None else since, cause)
        for listener in list(self._listeners.values()):
            try:
                listener(self.state)
            except BaseException:  # noqa: BLE001 - the caller's own function: the others and the reader continue
                host = self.host.name
                _log.exception("a listener failed when notified that the connection to %s is %s", host, name)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            message = f"The connection to {self.host.name} belongs to process {self._pid}, which forked this one"
            raise HostError(message, host=self.host.name, hint=OF_PARENT)
        if self.line.over is not None:
            # Each `raise` would add its frames to the traceback of this one object, which would grow without end.
            raise self.line.over.with_traceback(None)
        if self._needs_you is not None and not self._is_held():
            raise self._needs_you.with_traceback(None)

    def _run(self, work: Callable[[], None]) -> None:
        """Run one of the two threads. Forget its identifier at the end, because a later thread may get the same one."""
        with self._answers.no_wait_here():
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the outermost frame: waiting callers must get the error
                self._die(error)

    # The methods below run in the reader thread.

    def _read(self) -> None:
        # Both count streams in a row.
        brief = garbled = 0
        while self.line.over is None:
            opened, began = self.line.opened, time.monotonic()
            broken = self._answers.serve(opened)
            cause = broken.message if broken else opened.stream.cause() or "the host no longer answered"
            self.line.lose(opened)
            brief = brief + 1 if time.monotonic() - began < SOON_S else 0
            garbled = min(garbled, brief) + 1 if broken else 0
            if broken and garbled >= GARBLED:
                self._die(broken)
            if self.line.over is None:
                self._connect_again(cause, max(0, brief - 1))

    def _connect_again(self, cause: str, waits: int) -> None:
        """Wait for a request, then retry until connected, refused for good, or closed.

        Args:
            waits: How many pauses were made; after streams that broke soon, the next is not opened at once.
        """
        with self.line.changed:
            # Iterate over a copy, because a request that ends here may send another one.
            for request in list(self._requests.values()):
                if not request.resend():
                    del self._requests[request.id]
            # Reconnect only when a request needs the host: an idle program should not keep connecting.
            self.line.wait_until(lambda: bool(self._requests))
        self._set_state("reconnecting", cause)
        while self.line.over is None and not self._try_to_connect(waits):
            waits = min(waits + 1, MOST_WAITS)
            if self._needs_you is not None and self._wait_for_a_person():
                waits = 0

    def _try_to_connect(self, waits: int) -> bool:
        """Try once; return whether to stop: connected, refused for good, or closed."""
        if self.line.wait_until(lambda: False, pause_s(waits)):
            return True
        try:
            opened = self._tries.once(self._opener)
        except AuthenticationError:
            if can_hold(self.host):
                self._needs_you = prompts.needs_you(self.host.name)
            else:
                # No other program can log in for this one here, so waiting would be in vain: callers get the error.
                self._die(prompts.needs_you(self.host.name, can_hold=False))
        except Unreachable as error:
            self._set_state("reconnecting", error.message, self.state.since)
        except (HostError, ConfigError) as error:
            self._die(error)
        else:
            self._resume(opened)
            return True
        return self.line.over is not None

    def _wait_for_a_person(self) -> bool:
        """Wait until `clusterfn login` holds a connection, or until the end: a refused login is never retried.

        Requests that were sent stay open, because jobs continue; those that were not sent fail.

        Returns:
            Whether a person has logged in since; else a connection that was held before the refusal did not help.
        """
        assert self._needs_you is not None
        held_before = self._is_held()
        self._set_state("waiting", self._needs_you.message)
        with self.line.changed:
            refused = [self._requests.pop(number) for number in self._requests.unsent if number in self._requests]
            self._requests.unsent.clear()
        for request in refused:
            request.fail(self._needs_you)
        while self.line.over is None and not self._is_held():
            # A request that was sent meanwhile has found a held connection: otherwise it would have been rejected.
            self.line.wait_until(lambda: bool(self._requests.unsent), LOCAL_LOOK_S)
        self._needs_you = None
        if self.line.over is None and not held_before:
            self._set_state("reconnecting", "another process has logged in again")
        return not held_before

    def _is_held(self) -> bool:
        """Whether `clusterfn login` holds a connection; not as long as ssh cannot say to which host it would be."""
        try:
            return is_held(self.host)
        except Unreachable:
            return False

    def _resume(self, opened: AgentStream) -> None:
        with self.line.changed:
            is_open = self.line.renew(opened)
            # Drop frames for the old agent first. The requests below are queued again, as the new agent needs them.
            self._sender.forget()
            self._requests.unsent.clear()
            skipped = []
            for request in list(self._requests.values()):
                failed = self._requests.failed_before(request)
                if failed is None:
                    self._sender.send(request)
                    continue
                # A request that this one depends on was cancelled meanwhile. The new agent cannot know that, so fail it
                # here, and with it those that depend on it.
                self._requests.remove(request.id, failed)
                skipped.append((request, failed))
        for request, failed in skipped:
            request.fail(error_of(self.host, failed))
        if is_open:
            self._set_state("connected")
        else:
            self.line.hang_up(opened)

    # The method below ends the link, from any thread.

    def _die(self, error: BaseException) -> None:
        """End every open request with the error; none can be made any more."""
        with self.line.changed:
            if self.line.over is not None:
                return
            name = self.host.name
            over = self.line.over = wrapped(name, error, f"The connection to {name} broke on this machine")
            if isinstance(over, HostError):
                # The host has refused a connection, and none of these requests.
                # Callers act on `kind` and `path` of a request's error.
                over.kind = over.path = ""
            self.line.connected = False
            requests = list(self._requests.values())
            self._requests.clear()
            self.line.changed.notify_all()
        self.line.hang_up(self.line.opened)
        with self._answers.no_wait_here():
            for request in requests:
                request.fail(over)
            self._set_state("closed", str(over))

    # The method below runs in the event loop.

    async def check(self, now: float) -> None:
        """Ping a quiet stream; close one that does not answer. `now` is time.monotonic()."""
        if os.getpid() != self._pid:
            # The stream belongs to the parent process, which checks it itself.
            return
        with self.line.changed:
            if not self.line.connected:
                return
            health, opened = self.line.pulse.look(now, bool(self._requests)), self.line.opened
            if health == ASK:
                self._sender.say({"id": PING_ID, "do": "have", "paths": []})
        if health == DEAD:
            # Closing may take seconds, and nothing may block the loop's thread.
            await loop.in_thread(lambda: self.line.lose(opened), "clusterfn-hang-up")


async def watch(link: weakref.ref[Any]) -> None:
    """Call the `check` of a link every few seconds, for as long as others keep the link."""
    while True:
        await asyncio.sleep(PERIOD_S)
        strong = link()
        if strong is None:
            return
        await strong.check(time.monotonic())
        # Drop the reference: it would keep the link alive during the sleep, and so this loop would never end.
        del strong


def pause_s(waits: int) -> float:
    """Return the pause after so many pauses: exponential backoff with jitter."""
    longest = min(PAUSE_FIRST_S * 2**waits, PAUSE_LAST_S) if waits else 0.0
    return longest * random.uniform(0.5, 1.0)


class Tries:
    """The tries of one link to reach its host again."""

    def __init__(self) -> None:
        self._no_agent_since: float | None = None

    def once(self, opener: Callable[[], AgentStream]) -> AgentStream:
        """Try once.

        Raises:
            AuthenticationError: A person has to log in.
            Unreachable: The host cannot be reached now; or it has started no agent, for less than `NO_AGENT_S`.
            HostError, ConfigError: It is refused for good.
        """
        since, self._no_agent_since = self._no_agent_since, None
        try:
            return opener()
        except (AuthenticationError, HostKeyError, Unreachable):
            raise
        except HostError as error:
            now = time.monotonic()
            self._no_agent_since = now if since is None else since
            if error.kind == _UNSAFE or now - self._no_agent_since >= NO_AGENT_S:
                raise
            raise Unreachable(error.message) from error
