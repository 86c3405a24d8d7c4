"""A small TCP proxy in front of an sshd: adds delay, cuts connections, swallows everything. For tests and benchmarks.

It runs in threads of the calling process, so it goes away with the test.
"""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import threading
import time
from types import TracebackType

CHUNK_BYTES = 65536
Item = tuple[float, bytes, int]


class DelayProxy:
    """Forwards 127.0.0.1:listen_port (0: any free one) to 127.0.0.1:target_port, each byte one_way_s later.

    with DelayProxy(0, lab.host("py36-bash").port, 0.075) as proxy: connect to 127.0.0.1, proxy.port.
    The order of bytes is kept, and each direction takes `bytes_per_s`, without a limit by default. Attributes: port,
    accepted (connections so far), bytes_up, bytes_down, round_trips.

    round_trips is how often something went there and back since the proxy was made, the handshake of TCP included:
    what is sent belongs to the trip after the last one whose answer had arrived by then. So what is sent ahead and what
    the host says unasked cost none, and a busy machine can only add to the count, the less the longer the delay.
    """

    def __init__(
        self, listen_port: int, target_port: int, one_way_s: float = 0.0, bytes_per_s: float = math.inf
    ) -> None:  # fmt: skip
        self.target_port = target_port
        self.one_way_s = one_way_s
        self.bytes_per_s = bytes_per_s
        self.accepted = 0
        self.bytes_up = 0
        self.bytes_down = 0
        self.round_trips = 0
        self._trips_there = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self._closed = False
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._half: set[frozenset[int]] = set()
        self._listener = socket.create_server(("127.0.0.1", listen_port), backlog=64)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> DelayProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def far_ports(self) -> set[int]:
        """The ports of this machine from which its connections go on to the target."""
        found = set()
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):  # broken a moment ago
                    if end.getpeername()[1] == self.target_port:
                        found.add(end.getsockname()[1])
        return found

    def cut(self) -> int:
        """Break every connection at both ends (RST, as after a reboot of a router); new ones are accepted. How many."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            close_hard(end)
        return len(ends) // 2

    def blackhole(self) -> None:
        """Deliver nothing: both ends stay open and hear no word until restore()."""
        self._flowing.clear()

    def restore(self) -> None:
        """Deliver again, first what was held back (as TCP would)."""
        self._flowing.set()

    def refuse(self, *, refusing: bool = True) -> None:
        """Close new connections at once (after cut(): a host that stays away)."""
        self._refusing = refusing

    def close(self) -> None:
        """Stop listening and break what is open."""
        self._closed = True
        # A thread in accept() would keep the port: shutdown wakes it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                close_hard(near)
                continue
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        """One connection: the other end, and two threads for each direction."""
        self.accepted += 1
        self.round_trips += 1  # SYN and its answer; what ends the handshake goes with the first word of the next trip
        self._trips_there = self.round_trips + 1
        try:
            far = socket.create_connection(("127.0.0.1", self.target_port), timeout=150)
        except OSError:
            close_hard(near)
            return
        far.settimeout(None)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.bytes_per_s < math.inf:  # else the kernel takes some MB at once
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK_BYTES)
        with self._lock:
            self._open += [near, far]
        if self._closed:
            self.cut()
            return
        for source, target, up in ((near, far, True), (far, near, False)):
            waiting: queue.Queue[Item] = queue.Queue()
            threading.Thread(target=self._read, args=(source, waiting, up), daemon=True).start()
            threading.Thread(target=self._write, args=(waiting, target, source, up), daemon=True).start()

    def _read(self, source: socket.socket, waiting: queue.Queue[Item], up: bool) -> None:
        """Note when each piece came; an empty piece means the end."""
        data = b"x"
        while data:
            try:
                data = source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            if up:
                self.bytes_up += len(data)
            else:
                self.bytes_down += len(data)
            time.sleep(len(data) / self.bytes_per_s)
            trip = self.round_trips + 1 if up else self._trips_there
            waiting.put((time.monotonic() + self.one_way_s, data, trip))

    def _write(self, waiting: queue.Queue[Item], target: socket.socket, source: socket.socket, up: bool) -> None:
        """Deliver each piece when it is due."""
        while True:
            due, data, trip = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            self._flowing.wait()
            if up:
                self._trips_there = max(self._trips_there, trip)
            else:
                self.round_trips = max(self.round_trips, trip)
            try:
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    break
                target.sendall(data)
            except OSError:
                break
        self._finish(source, target)

    def _finish(self, source: socket.socket, target: socket.socket) -> None:
        """Forget a pair once both directions ended; the first to end leaves a half-closed connection, as TCP has it."""
        with self._lock:
            pair = [end for end in (source, target) if end in self._open]
            if len(pair) < 2:
                return
            key = frozenset((id(source), id(target)))
            if key not in self._half:
                self._half.add(key)
                return
            self._half.discard(key)
            self._open = [end for end in self._open if end not in pair]
        for end in pair:
            end.close()


def close_hard(end: socket.socket) -> None:
    """Close with RST instead of FIN, and wake the threads that wait on it."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)
    end.close()
