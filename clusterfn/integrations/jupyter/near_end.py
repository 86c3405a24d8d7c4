"""The end of a stream on the user's machine: it listens, and carries each connection to the far end in a job.

Kernels, JupyterLab, dask and tunnels have it in common. It listens at once, and keeps what is sent until the job runs.
SIGTERM ends it, and it tells the far end what becomes of the job.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from clusterfn.bridge.kernel import stream
from clusterfn.bridge.kernel.carried import READ, CarriedConnections, SocketWatcher
from clusterfn.bridge.kernel.stream import Frame, FrameSplitter, FrameStream, StreamDamaged, facts_of
from clusterfn.bridge.supervisor.text import format_duration, in_one_line
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import loop
from clusterfn.integrations.jupyter.kernel_link import UNDELIVERED_BYTES, HolderLink, LoopEvents

if TYPE_CHECKING:
    from clusterfn.integrations.jupyter.kernel_job import JobRecord, KernelJob

# While the holder has not acknowledged this much of the client's data, the client's sockets are not read.
LIMIT_BYTES = 8 * 2**20
_TICK_S = 1.0
_PARENT = "JPY_PARENT_PID"
OpenLink = Callable[["KernelJob", Callable[[str, Any], None]], HolderLink]
# At the end, the client has this long to take the last messages, and the holder to take those of the client.
_LAST_BYTES_S = 1.0
_FLUSH_S = 0.5
# Clients kill this process 2.5 s after they have asked it to end.
_WITHDRAW_S = 2.0


class AnswersWhileWaiting(Protocol):
    """What answers a client as long as the job waits; `kernel_proxy.WaitingKernel` does."""

    def accept(self, number: int, channel: int) -> Callable[[bytes], bytes] | None: ...
    def look(self) -> None: ...
    def show(self, text: str) -> None: ...
    def end(self, why_not: str = "") -> None: ...
    def without_handshake(self, frame: Frame) -> Frame: ...


class NearEnd:
    """The loop.

    Args:
        title: What the job has at the far end.
        listeners: By the number of their channel.
        find: Returns the job once its far end can be reached; called in a thread.
        report: Prints a sentence.
        key: By which the far end knows this user's program, and how Jupyter's messages are signed.

    Attributes:
        on_sigint: The event that SIGINT is; "" where signals belong to the user's program.
        last_word: What the far end is told when this process is to end: "end", "orphan", or "" for nothing.
        withdraw: Ends a job that `find` has started, but not returned.
        record: Keeps for the next process what has become of the job; None if there is none.
        waiting: Answers the client as long as the job waits; None if it waits silently.
        open_link: Makes the link to the far end.
        stream: This end of the stream.
    """

    on_sigint = "terminate"
    last_word = "end"
    record: JobRecord | None = None
    waiting: AnswersWhileWaiting | None = None

    def __init__(
        self,
        title: str,
        listeners: Mapping[int, socket.socket],
        find: Callable[[], KernelJob],
        report: Callable[[str], None],
        key: tuple[str, str] = ("", ""),
    ) -> None:
        self.title = title
        self.withdraw: Callable[[], None] = lambda: None
        self.open_link: OpenLink = link_to
        self._find = find
        self._report = report
        self._key = key
        self._watcher = SocketWatcher()
        self.events = LoopEvents(self._watcher)
        self._incarnation = secrets.token_hex(16)
        self._begin_stream()
        self._splitter = FrameSplitter()
        self._job: KernelJob | None = None
        self._link: HolderLink | None = None
        self._is_greeted = self._is_fleeting = self._is_lost = self._is_orphan = False
        self._count = 0
        self._parent = os.getppid() if os.environ.get(_PARENT) == str(os.getppid()) else None
        self._code: int | None = None
        self._leaves_at = 0.0
        for channel, listener in listeners.items():
            self._watcher.watch(listener, READ, lambda _, pair=(channel, listener): self._accept(*pair))  # type: ignore[misc]

    def _begin_stream(self) -> None:
        self.stream = FrameStream()
        self._carried = CarriedConnections(self._watcher, self.stream, LIMIT_BYTES)

    def run(self) -> int:
        """Serve the client until the kernel has ended, or this process is to end; return the exit code."""
        for number, kind in ((signal.SIGINT, self.on_sigint), (signal.SIGTERM, "terminate")) if self.on_sigint else ():
            signal.signal(number, lambda *_, kind=kind: self.events.post(kind))
        loop.begin(self._find_job())
        while self._code is None or (time.monotonic() < self._leaves_at and self._has_last_bytes()):
            self._watcher.wait(_TICK_S if self._code is None else 0.05)
            if self.waiting is not None:
                self.waiting.look()
            while self._carried.undelivered < UNDELIVERED_BYTES and (event := self.events.next_event()) is not None:
                self._handle(*event)
            self._carried.pause_if_full()
            self._send()
            # The client was killed, and so could not shut its kernels down.
            if self._parent not in (None, os.getppid()):
                self._terminate()
        return self._code

    def flush(self) -> None:
        """Wait a moment until the host has what was sent last: our acknowledgement ends the job."""
        if self._job is not None and self._is_greeted:
            with contextlib.suppress(ClusterfnError):
                self._job.host.connection.ping().result(_FLUSH_S)

    def close(self) -> None:
        """Close all connections once `run` has returned, if this process continues."""
        if self._link is not None:
            self._link.close()
        self.events.close()
        self._carried.close()
        self._watcher.close()

    async def _find_job(self) -> None:
        try:
            self.events.post("found", await loop.in_thread(self._find, "clusterfn-kernel-job"))
        except ClusterfnError as error:
            self.events.post("failed", str(error))
        except BaseException as error:
            # Whatever ends the search, the client must not wait for ever, and its log says why.
            self.events.post("failed", f"the search for its job has failed: {error!r}")
            raise

    def _accept(self, channel: int, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        # Jupyter's messages are small, and Nagle's algorithm would hold each of them back until the last is
        # acknowledged. On macOS that fails where the other side has closed already, which is read as its end below.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._count += 1
        self.stream.send(stream.OPEN, self._count, bytes([channel]))
        sees = None if self.waiting is None else self.waiting.accept(self._count, channel)
        self._carried.add(self._count, sock, sees)

    def _handle(self, kind: str, data: Any) -> None:
        if kind == "found":
            self._job = data
            if self.waiting is not None:
                self.waiting.end()
            self._link = self.open_link(data, self.events.post)
            self._connect(self._link)
        elif kind == "failed":
            if self.waiting is not None:
                self.waiting.end(f"there will be no kernel: {data}")
            self._leave(1, data)
        elif kind == "gone":
            self._leave(1, self._why_gone(data))
        elif kind == "interrupt":
            self.stream.say(do="interrupt")
        elif kind == "terminate":
            self._terminate()
        elif kind == "data":
            self._take(data)
        elif kind == "lost":
            self._lose(data)
        elif kind == "said" and self.waiting is not None:
            self.waiting.show(data)

    def deliver(self, connection: int, data: bytes) -> None:
        """Send bytes to a client that do not come from the far end."""
        self._carried.take(Frame(stream.DATA, connection, 0, data))

    def send_data(self, connection: int, data: bytes) -> None:
        """Send bytes of a client that were kept back."""
        self.stream.send(stream.DATA, connection, data)

    def _connect(self, link: HolderLink) -> None:
        """Have a connection opened to the holder. All that came through the last one has been handled."""
        self._splitter = FrameSplitter()
        self._is_greeted = False
        adopts = self._job.adopts if self._job is not None else ""
        key, scheme = self._key
        hello = {"incarnation": self._incarnation, "key": key, "signature_scheme": scheme, "adopts": adopts}
        link.open(stream.pack_hello({**hello, "received": self.stream.received}))

    def _take(self, data: bytes) -> None:
        try:
            coming = self._splitter.feed(data)
            if coming and not self._is_greeted:
                self._take_hello(coming.pop(0))
            for frame in self.stream.take(coming) if self._is_greeted else ():
                if frame.kind == stream.SAY:
                    self._take_word(facts_of(frame))
                else:
                    self._carried.take(frame if self.waiting is None else self.waiting.without_handshake(frame))
        except (StreamDamaged, KeyError, TypeError, ValueError, OverflowError) as damaged:
            why = damaged if isinstance(damaged, StreamDamaged) else repr(damaged)
            self._leave(1, f"the connection to {self.title} is damaged: {why}")

    def _take_hello(self, frame: Frame) -> None:
        if frame.kind != stream.HELLO:
            raise StreamDamaged("it begins without a hello")
        facts = facts_of(frame)
        if facts.get("refused"):
            self._leave(1, str(facts["refused"]))
            return
        self.stream.resume(int(facts["received"]))
        self._is_greeted, self._is_fleeting = True, bool(facts.get("fleeting"))
        if self._is_lost:
            self._is_lost = False
            self._report(f"the connection to {self.title} is back")

    def _take_word(self, facts: dict[str, Any]) -> None:
        """Act on the end of what the job has there, all of whose output has arrived, or show why a port is closed."""
        if facts.get("closed"):
            self._report(in_one_line(str(facts["closed"])))
        ended = facts.get("ended")
        if ended == "died":
            lines = "".join(f"\n  {line}" for line in facts["lines"])
            self._leave(1, f"{self.title} died: {facts['how']}{lines}")
        elif ended == "idle":
            why = f"{self.title} was idle for {format_duration(facts['idle_s'])}, and has released its GPUs"
            self._refuse(why)
            self._leave(1, f"{why}: restart it to continue")
        elif ended in ("end", "keep"):
            if ended == "end" and self.record is not None:
                self.record.remove()
            self._leave(0, "")

    def _lose(self, why: str) -> None:
        self.stream.disconnect()
        if self._link is None or (self._code is not None and not self._is_orphan):
            return
        # Whatever ended the job did not let the holder report it.
        if self._job is not None and self._job.job.done():
            self._leave(1, self._why_gone(why))
            return
        if self._is_fleeting:
            # The far end has gone with all that it had: the connections are closed, and new ones work.
            self._carried.close()
            self._begin_stream()
        self._connect(self._link)
        if not self._is_lost and self._code is None:
            self._is_lost = True
            self._report(f"the connection to {self.title} is lost, and its job keeps running: {why}")

    def _why_gone(self, why: str) -> str:
        """Return why the holder is gone: its job knows it best."""
        # Imported late, because it loads all that a call needs, and the proxy must listen for the client at once.
        from clusterfn.integrations.jupyter.kernel_job import reason_of_end

        if self._job is not None:
            concurrent.futures.wait([self._job.job], _WITHDRAW_S)
            if self._job.job.done():
                why = str(reason_of_end(self._job.job))
        why = f"{self.title} is gone: {why}"
        self._refuse(why)
        return why

    def _refuse(self, why: str) -> None:
        """Reject the next start for a moment: clients start a kernel again that has ended by itself."""
        if self.record is not None:
            self.record.refuse(why)

    def _terminate(self) -> None:
        """The client wants this process to end: withdraw the job if it waits, else leave the kernel as an orphan."""
        if self._code is not None:
            return
        if self._job is None:
            withdrawing = loop.start(loop.in_thread(self.withdraw, "clusterfn-kernel-withdraw"))
            ended, _ = concurrent.futures.wait([withdrawing], _WITHDRAW_S)
            if ended and (error := withdrawing.exception()) is not None:
                self._report(f"the job of {self.title} was not withdrawn: {error}")
        else:
            if self.last_word:
                self.stream.say(do=self.last_word)
            self._is_orphan = bool(self.last_word)
            if self.record is not None:
                with contextlib.suppress(OSError):
                    # On a full disk nothing can be noted; a restart then asks for other GPUs.
                    self.record.leave_orphan()
        self._leave(0, "")

    def _leave(self, code: int, why: str) -> None:
        """End this process once what is on its way has arrived, or soon."""
        if self._code is not None:
            return
        self._code = code
        self._leaves_at = time.monotonic() + _LAST_BYTES_S
        if why:
            self._report(why)

    def _has_last_bytes(self) -> bool:
        # Some clients kill ssh before they end this process, so an orphan waits for the connection to come back.
        is_reachable = self._is_greeted or self._is_orphan
        return bool(self._carried.undelivered or (is_reachable and self.stream.kept_bytes))

    def _send(self) -> None:
        while self._is_greeted and self._link is not None and self.stream.unsent():
            self._link.write(self.stream.next_unsent())


def link_to(job: KernelJob, post: Callable[[str, Any], None]) -> HolderLink:
    """Return the link to the holder of a job."""
    host = job.host
    return HolderLink(lambda: host.connection, job.address, post, job.join, host.scheduler.unset)


def exit_at_once(code: int) -> None:
    """End the process without waiting for its threads: clients wait a second or two for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
