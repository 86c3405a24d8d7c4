"""Jupyter's requests, read from the bytes that libzmq really sends."""

from __future__ import annotations

import socket
import sys

import pytest
import zmq
from jupyter_client.session import Session

from clusterfn.bridge.kernel.zmtp import MessageReader, request_of
from tests.waiting import WAIT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="runs on hosts alone")


def sent_bytes(*messages: tuple[str, dict[str, object], list[bytes]]) -> bytes:
    """What a client's shell channel writes for these messages, on a connection whose other end is a kernel's."""
    with zmq.Context() as context, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        kernel = context.socket(zmq.ROUTER)
        port = kernel.bind_to_random_port("tcp://127.0.0.1")
        client = context.socket(zmq.DEALER)
        client.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        session, written = Session(key=b"key"), b""
        for kind, content, buffers in messages:
            session.send(client, kind, content, buffers=buffers)
        between, _ = listener.accept()
        with between, socket.create_connection(("127.0.0.1", port)) as onward:
            arrived = 0
            while arrived < len(messages):
                for source, target in ((between, onward), (onward, between)):
                    source.settimeout(0.01)
                    try:
                        data = source.recv(1 << 16)
                    except TimeoutError:
                        continue
                    target.settimeout(WAIT_S)
                    target.sendall(data)
                    written += data if source is between else b""
                while kernel.poll(0):
                    kernel.recv_multipart()
                    arrived += 1
        for each in (client, kernel):
            each.close(linger=0)
    return written


def test_requests_are_found_among_the_bytes_of_libzmq():
    data = sent_bytes(
        ("execute_request", {"code": "x" * 1000}, []),
        ("comm_msg", {"data": {}}, [b"b" * (3 << 20)]),
        ("shutdown_request", {"restart": True}, []),
    )
    for size in (7, 1 << 16):
        reader, found = MessageReader(), []
        for start in range(0, len(data), size):
            found += [request_of(parts) for parts in reader.feed(data[start : start + size])]

        assert [kind for kind, _ in found] == ["execute_request", "comm_msg", "shutdown_request"]
        assert found[0][1]["code"] == "x" * 1000
        assert found[2][1] == {"restart": True}


def test_what_is_no_request_has_no_type():
    whole = [b"<IDS|MSG>", b"", b'{"msg_type": "a"}', b"{}", b"{}", b"{}"]

    assert request_of(whole) == ("a", {})
    assert [request_of(whole[:length])[0] for length in range(6)] == [""] * 6
    assert request_of([b"\x01kernel.1"]) == ("", {})
    assert request_of([*whole[:5], b"{"]) == ("", {})
