"""What is sent through paramiko arrives as it is, by each cipher and while keys are exchanged again."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

from clusterfn.hosts.transports import paramiko_packets
from clusterfn.hosts.transports.paramiko import CIPHERS
from clusterfn.hosts.transports.paramiko_packets import MOST, QuickPacketizer, QuickSocket, send_all

WAIT_S = 30.0
Connect = Callable[..., AbstractContextManager["tuple[paramiko.Channel, paramiko.Channel]"]]


class LetsAnyoneIn(paramiko.ServerInterface):
    def check_auth_none(self, username: str) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED


@pytest.fixture(scope="module")
def connect() -> Connect:
    """Connect a client with our packetizer and a server of paramiko; give the two ends of a channel."""
    key = paramiko.RSAKey.generate(2048)

    @contextlib.contextmanager
    def connected(
        cipher: str,
        mac: str = "",
        packetizer: type[QuickPacketizer] = QuickPacketizer,
        window: int = 2**21,
        as_socket: Callable[[socket.socket], Any] = QuickSocket,
    ) -> Iterator[tuple[paramiko.Channel, paramiko.Channel]]:
        ours, theirs = socket.socketpair()
        server = paramiko.Transport(theirs, default_window_size=window, default_max_packet_size=2**17)
        server._channel_counter = 7  # as for a server with older channels: each end has numbers of its own
        client = paramiko.Transport(as_socket(ours), packetizer_class=packetizer)
        options = client.get_security_options()
        if cipher not in options.ciphers:
            pytest.skip(f"paramiko {paramiko.__version__} does not know {cipher}")
        options.ciphers, options.digests = [cipher], [mac] if mac else options.digests
        with contextlib.closing(server), contextlib.closing(client):
            server.add_server_key(key)
            server.start_server(event=threading.Event(), server=LetsAnyoneIn())
            client.start_client(timeout=WAIT_S)
            client.auth_none("user")
            channel, accepted = client.open_session(timeout=WAIT_S), server.accept(WAIT_S)
            accepted.settimeout(WAIT_S)
            yield channel, accepted

    return connected


def received(channel: paramiko.Channel, size: int) -> bytes:
    taken = b""
    while len(taken) < size:
        piece = channel.recv(size - len(taken))
        assert piece, f"it ended after {len(taken)} of {size} bytes"
        taken += piece
    return taken


WITH_MACS = [("aes128-ctr", "hmac-sha2-256-etm@openssh.com"), ("aes128-ctr", "hmac-sha2-256")]


@pytest.mark.parametrize(("cipher", "mac"), [*((name, "") for name in CIPHERS), *WITH_MACS])
def test_each_size_arrives_by_each_cipher(connect: Connect, cipher: str, mac: str) -> None:
    sizes = [*range(1, 40), MOST - 1, MOST, MOST + 1, 3 * MOST + 7]
    with connect(cipher, mac) as (ours, theirs):
        for size in sizes:
            data = os.urandom(size)
            send_all(ours, data)
            assert received(theirs, size) == data


def test_more_than_a_window_arrives_while_the_keys_are_exchanged_again(connect: Connect) -> None:
    data = os.urandom(12 * 2**20)
    with connect(CIPHERS[0]) as (ours, theirs):
        ssh = ours.get_transport()
        ssh.packetizer.REKEY_BYTES = 3 * 2**20
        sender = threading.Thread(target=send_all, args=(ours, memoryview(data)), daemon=True)
        first = ssh.H

        sender.start()
        arrived = received(theirs, len(data))

        sender.join(WAIT_S)
        assert hashlib.sha256(arrived).digest() == hashlib.sha256(data).digest()
        assert first != ssh.H, "no keys were exchanged"


class ThroughAJumpHost:
    """Not a socket, as the channel of a jump host."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


@pytest.mark.parametrize(("as_socket", "most"), [(QuickSocket, 2**18 + 2**15), (ThroughAJumpHost, 2**15)])
def test_packets_go_together_to_a_socket_while_more_data_follows(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, as_socket: Callable[[socket.socket], Any], most: int
) -> None:
    written: list[int] = []
    write_all = paramiko.packet.Packetizer.write_all

    def watched(self: Any, out: bytes) -> None:
        if isinstance(self, QuickPacketizer):
            written.append(len(out))
        write_all(self, out)

    data = os.urandom(2**20)
    with connect(CIPHERS[0], window=2**20, as_socket=as_socket) as (ours, theirs):
        monkeypatch.setattr(paramiko.packet.Packetizer, "write_all", watched)
        send_all(ours, data)
        assert received(theirs, 2**20) == data

    assert most / 2 < max(written) <= most, written


@pytest.mark.parametrize("window", [2**15, 2**17, 2**18 + 1])
def test_nothing_waits_for_more_when_the_window_of_the_host_is_used_up(connect: Connect, window: int) -> None:
    data = os.urandom(2**20)
    with connect(CIPHERS[0], window=window) as (ours, theirs):
        sender = threading.Thread(target=send_all, args=(ours, data), daemon=True)
        sender.start()

        assert received(theirs, len(data)) == data
        sender.join(WAIT_S)


def test_other_messages_take_those_along_that_wait_for_more(connect: Connect) -> None:
    data = os.urandom(8 * 2**20)
    with connect(CIPHERS[0]) as (ours, theirs):
        ssh = ours.get_transport()
        sender = threading.Thread(target=send_all, args=(ours, memoryview(data)), daemon=True)
        sender.start()
        taken = b""
        while len(taken) < len(data):
            ssh.send_ignore(99)
            piece = theirs.recv(2**18)
            assert piece, "the server has found a packet out of order"
            taken += piece
        sender.join(WAIT_S)

    assert taken == data


def test_two_channels_of_one_connection_do_not_mix(connect: Connect) -> None:
    sent = [os.urandom(2**20), os.urandom(2**20)]
    with connect(CIPHERS[0]) as (ours, theirs):
        more = ours.get_transport().open_session(timeout=WAIT_S), theirs.get_transport().accept(WAIT_S)
        pairs = [(ours, theirs), more]
        for (channel, _), data in zip(pairs, sent):
            threading.Thread(target=send_all, args=(channel, data), daemon=True).start()
        with concurrent.futures.ThreadPoolExecutor() as readers:
            assert list(readers.map(lambda pair: received(pair[1], 2**20), pairs)) == sent


class Watched(QuickPacketizer):
    """Keeps the type of what is given to AES-GCM, its size and that of its padding."""

    def set_outbound_cipher(self, block_engine: Any, *args: Any, **kwargs: Any) -> None:
        self.given: list[tuple[type, int, int]] = []

        def encrypt(iv: bytes, data: Any, length: bytes) -> bytes:
            self.given.append((type(data), len(data), data[0]))
            return bytes(block_engine.encrypt(iv, data, length))

        super().set_outbound_cipher(SimpleNamespace(encrypt=encrypt), *args, **kwargs)


@pytest.mark.parametrize("takes_memory", [True, False])
def test_a_cryptography_that_encrypts_only_bytes_gets_bytes(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, takes_memory: bool
) -> None:
    if takes_memory and not paramiko_packets.encrypts_memory():
        pytest.skip("the cryptography of this Python encrypts only bytes")
    monkeypatch.setattr(paramiko_packets, "encrypts_memory", lambda: takes_memory)
    with connect(CIPHERS[0], packetizer=Watched) as (ours, theirs):
        send_all(ours, b"data" * 9999)
        assert received(theirs, 4 * 9999) == b"data" * 9999
        given = ours.get_transport().packetizer.given

    assert {kind for kind, size, _ in given if size > 2**12} == {memoryview if takes_memory else bytes}


def test_data_is_encrypted_from_the_memory_of_the_packet_in_whole_blocks(connect: Connect) -> None:
    with connect(CIPHERS[0], packetizer=Watched) as (ours, theirs):
        for size in range(MOST - 40, MOST + 1):
            send_all(ours, bytes(size))
            received(theirs, size)
        given = [each for each in ours.get_transport().packetizer.given if each[1] > 2**12]

    assert len(given) == 41
    # paramiko accepts what RFC 4253 forbids, and OpenSSH rejects
    assert all(size % 16 == 0 and 4 <= padding < 20 for _, size, padding in given)
