"""The delaying proxy counts round trips. Needs no lab: the other end is an echo in this process."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from tests.lab import DelayProxy
from tests.waiting import until


class Echo(socketserver.BaseRequestHandler):
    """Sends back what it gets."""

    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A cut connection is what these tests are about."""


@pytest.fixture
def echo_port() -> Iterator[int]:
    with EchoServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def connect(proxy: DelayProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=150)


def read_all(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += stream.recv(65536)
    return data


def test_round_trips_are_counted_and_what_is_sent_ahead_costs_none(echo_port: int) -> None:
    with DelayProxy(0, echo_port, 0.1) as proxy, connect(proxy) as stream:
        stream.sendall(b"x")
        read_all(stream, 1)
        assert proxy.round_trips == 2, "the handshake, and this"
        proxy.blackhole()  # no answer comes back before all is sent
        for _ in range(3):
            stream.sendall(b"y")
            assert proxy.round_trips == 2
        until(lambda: proxy.bytes_up == 4)
        proxy.restore()
        read_all(stream, 3)
        assert proxy.round_trips == 3
        for _ in range(2):
            stream.sendall(b"z")
            read_all(stream, 1)
        assert proxy.round_trips == 5
