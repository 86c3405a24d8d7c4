"""The stream into a session's socket: calls go through it, and what becomes of them comes back, without a file between.

All that comes is in the files of the calls too. So a stream that is lost loses nothing: its calls go on with their
files, from the byte to which they were heard, and those that may not have arrived are sent as files. Where there is no
way to the socket, all calls go by files.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import logging
import posixpath
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.agent.frames import Inbox, pack
from clusterfn.calls.arriving import Arriving
from clusterfn.calls.following import AgentSource, OnOutput, lose, see_through, take_outcome
from clusterfn.errors import ClusterfnError, ResultError
from clusterfn.hosts import loop, spoken_wait

if TYPE_CHECKING:
    from clusterfn.calls.run import Run
    from clusterfn.hosts.connection import HostConnection, Reply
    from clusterfn.hosts.host_state import HostState

# A call with more bytes goes as files, so that other calls can be sent beside it.
MOST_BYTES = 256 << 10
# The host's agent keeps in memory what the session has not taken, so no more than this is sent ahead.
MOST_UNTAKEN = 16 << 20
_log = logging.getLogger("clusterfn")
# A frame of a host of ours is never longer.
_LONGEST_FRAME = 64 << 20


class CallStream:
    """The stream of the session with this folder; `on_gone` gets the number of an actor that has ended, and why."""

    def __init__(self, host: HostState, folder: str, on_gone: Callable[[int, str], None]) -> None:
        self._host, self._folder, self._on_gone = host, folder, on_gone
        self._changed = threading.Condition()
        self._calls: dict[int, SocketSource] = {}
        # All calls up to this number that went this way are in their folders.
        self._taken = 0
        # The bytes of the calls after that number, the first one first.
        self._untaken: dict[int, int] = {}
        self._untaken_bytes = 0
        self._is_open = self._is_closed = False
        self._inbox = Inbox()
        # To the question where the session listens, and then to the stream itself.
        self._reply: Reply[Any] | None = None
        # The connection that carries the stream: the host may get another one.
        self._connection: HostConnection | None = None

    def open(self) -> None:
        """Connect once the session listens. Does not wait, and raises nothing if that is impossible."""
        loop.begin(self._carry())

    async def _carry(self) -> None:
        """Connect once the session listens, and again when the stream is lost, if the session has ever answered."""
        connects_again = not self._is_closed
        while connects_again:
            try:
                self._reply = coming = self._host.connection.wait(posixpath.join(self._folder, layout.DOOR))
                self._reply = reply = self._connect(await coming)
            except (ClusterfnError, concurrent.futures.CancelledError):
                # Each call gets that error itself.
                return
            if reply is None:
                return
            # It was closed at this moment, when there was no reply to cancel yet.
            if self._is_closed:
                reply.cancel()
            connects_again = self._hand_back(await reply.error())

    def _connect(self, door: bytes) -> Reply[None] | None:
        """Connect to where the session listens; None if there is no way."""
        try:
            facts = json.loads(door)
            address, attach, submission = str(facts["socket"]), [*map(str, facts["attach"])], str(facts["submission"])
        except (ValueError, KeyError, TypeError, RecursionError):
            # The file is damaged, so the calls go as files.
            return None
        connection, scheduler = self._host.connection, self._host.scheduler
        self._connection = connection
        self._inbox = Inbox()
        if self._is_closed:
            return None
        if not scheduler.has_nodes:
            return connection.connect_socket(address, pack({"what": "hello"}), self._take_data)
        if join := scheduler.join_command(submission):
            hello, nudge = pack({"what": "hello", "answer_pieces": True}), pack({"what": "nudge"})
            return connection.converse([*join, *attach], hello, self._take_data, scheduler.unset, nudge)
        return None

    def send(self, number: int, call: SocketSource, payload: bytes, facts: Mapping[str, Any], live: bool) -> bool:
        """Send a call, with what its call.json says, and hear it from now on; return whether it went this way."""
        connection = self._connection
        if len(payload) > MOST_BYTES or connection is None or not connection.link.usable():
            return False
        with self._changed:
            reply = self._reply
            if not self._is_open or reply is None or self._untaken_bytes + len(payload) > MOST_UNTAKEN:
                return False
            self._calls[number] = call
            self._untaken[number] = len(payload)
            self._untaken_bytes += len(payload)
        # The write comes after the lock is released: the reader thread may hold the connection's own lock, and wait for
        # this one. It finds the call, and a write to a reply that is over is dropped.
        connection.write(reply, pack({**facts, "what": "call", "n": number, "live": live}, payload))
        return True

    def forget(self, number: int) -> None:
        with self._changed:
            self._calls.pop(number, None)
            self._changed.notify_all()

    def await_taken(self, number: int | None, timeout_s: float) -> None:
        """Wait until a call that went this way, or all of them, are in their folders on the host."""

        def is_taken() -> bool:
            waited_for = self._calls if number is None else self._calls.keys() & {number}
            return all(number <= self._taken for number in waited_for)

        def waits(seconds: float | None) -> bool:
            with self._changed:
                return self._changed.wait_for(is_taken, seconds)

        spoken_wait.wait(waits, lambda: f"waiting for the session {self._folder} to take its calls", timeout_s)

    def close(self) -> None:
        """Hear nothing any more, and do not connect again: the session has ended."""
        self._is_closed = True
        with self._changed:
            self._is_open = False
        if self._reply is not None:
            self._reply.cancel()

    # on the reader thread of the connection

    def _take_data(self, data: bytes) -> None:
        for header, body in self._inbox.feed(data):
            self._take_frame(header, body)
        if len(self._inbox.data) > _LONGEST_FRAME:
            raise ValueError("the session sends what is no frame")

    def _take_frame(self, header: Mapping[str, Any], body: bytes) -> None:
        what, number = header["what"], header.get("n", 0)
        if what == "end":
            end = int(header["outcome"])
            value = body[end:] if header["has_value"] else None
        with self._changed:
            self._taken = max(self._taken, int(header["taken"]))
            over = list(itertools.takewhile(lambda untaken: untaken <= self._taken, self._untaken))
            # The session does not take this call through the stream.
            over += [number] if what == "again" else []
            self._untaken_bytes -= sum(self._untaken.pop(untaken, 0) for untaken in over)
            self._is_open = True
            call = self._calls.pop(number, None) if what == "again" else self._calls.get(number)
            self._changed.notify_all()
        if what == "gone":
            self._on_gone(int(header["actor"]), str(header["reason"]))
        if call is None:
            return
        if what == "again":
            call.go_on_with_files(has_arrived=False)
        elif what == "end":
            call.conclude(body[:end], value)
            # The call is forgotten only now: one whose end cannot be taken continues with its files.
            self.forget(number)
        else:
            call.append(_FILES[what], body)

    # once the stream is over

    def _hand_back(self, error: BaseException | None) -> bool:
        """Have its calls go on with their files, and return whether to connect again."""
        with self._changed:
            had_answered, self._is_open, self._reply = self._is_open, False, None
            lost, taken = dict(self._calls), self._taken
        is_dead = self._connection is None or not self._connection.link.usable()
        for number, call in sorted(lost.items()):
            try:
                call.go_on_with_files(has_arrived=number <= taken, dead=error if is_dead else None)
            except Exception:  # noqa: BLE001 - the caller's own function may raise anything
                # An error of one call must not keep the other calls here.
                _log.exception("call %d could not be followed by its files", number)
        with self._changed:
            self._calls.clear()
            self._untaken.clear()
            self._untaken_bytes = 0
            self._changed.notify_all()
        return had_answered and not (self._is_closed or is_dead)


_FILES: Mapping[str, str] = {"events": layout.EVENTS, "stdout": layout.STDOUT, "stderr": layout.STDERR}


class SocketSource(AgentSource):
    """What comes of one call of a session: through the session's stream, or by its files as that of a job does."""

    _send_files: Callable[[], None] | None = None

    def __init__(self, run: Run, live: bool, stream: CallStream, number: int) -> None:
        super().__init__(run, live)
        self._stream, self._number = stream, number
        self._heard: dict[str, int] = {}
        self._hearing: Sequence[OnOutput] = ()

    def send(self, payload: bytes, facts: Mapping[str, Any], send_files: Callable[[], None]) -> bool:
        """Send the call through the stream, and hear it there; return whether it went. `send_files` is for later."""
        self._send_files = send_files
        self._hearing = self.begin(1)
        self._heard = dict.fromkeys((layout.EVENTS, layout.STDOUT, layout.STDERR), 0)
        return self._stream.send(self._number, self, payload, facts, bool(self._hearing))

    def append(self, file: str, data: bytes) -> None:
        self._heard[file] += len(data)
        if file == layout.EVENTS:
            self.take_events(data)
            return
        for on_output in self._hearing:
            on_output(file, data)

    def conclude(self, content: bytes, value: bytes | None) -> None:
        """Take its outcome, and its value unless that is too large to come with it: then it is fetched."""
        run = self.run
        if run.is_closed:
            return
        if not run.at.is_fetched_apart:
            if value is None:
                self._follow_rest()
                return
            arriving = Arriving(run.at.place)
            try:
                arriving.announce(content)
                arriving.write(value)
            except ResultError as error:
                lose(run, error, arriving)
                return
            self.arriving = arriving
        waiting = take_outcome(run, self, content)
        if waiting is not None:
            loop.begin(see_through(run, self, waiting))

    def go_on_with_files(self, has_arrived: bool, dead: BaseException | None = None) -> None:
        """Follow its files, as the stream is lost; send them unless it has arrived. Or end it: its host is `dead`."""
        send_files = self._send_files
        # The call has ended.
        if self.run.is_closed or send_files is None:
            return
        if dead is not None:
            lose(self.run, dead)
            return
        try:
            if not has_arrived:
                send_files()
            self._follow_rest()
        except ClusterfnError as error:
            # The connection has ended at this moment.
            lose(self.run, error)

    def _follow_rest(self) -> None:
        """Follow its files from where the stream has ended."""
        self._see_through(self.follow_files(self._hearing, self._heard))

    def close(self) -> None:
        super().close()
        self._send_files = None
        self._stream.forget(self._number)
