"""Hosts by SSH, with paramiko: for machines without an ssh, and for Windows, whose ssh can ask no person for us.

One connection per stream, strict host keys. Imported when a host needs it, because that takes a tenth of a second.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import paramiko

from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts.transports import base, host_keys, ssh_errors
from clusterfn.hosts.transports.base import SSH_PROBE_S, STDERR_KEPT, Stream, Transport
from clusterfn.hosts.transports.paramiko_login import log_in
from clusterfn.hosts.transports.prompts import Asker
from clusterfn.hosts.transports.ssh_config import Settings, jumps, refuse_unmet, resolve

# The bytes of one packet. paramiko copies what is left of a longer text for each packet of it.
_PACKET = 32 * 2**10 - 64
STATUS_S = 10.0
# A ProxyJump may lead back to a host before it.
HOPS = 8
LOG = "clusterfn.ssh"
_JOIN_S = 1.0
# paramiko raises these where a busy sshd drops a connection: it misses the banner, or gets a reset.
HUNG_UP = (EOFError, ConnectionResetError, paramiko.SSHException)
BROKEN = (OSError, EOFError, paramiko.SSHException)
# At exit paramiko would end all connections before what was registered earlier, and what a program still sends would
# start again on another connection. `hosts.connection` closes them after that.
atexit.unregister(getattr(paramiko.transport, "_join_lingering_threads", print))

# Without a handler, logging's handler of last resort would print tracebacks of paramiko.
logging.getLogger(LOG).addHandler(logging.NullHandler())
if logging.getLogger(LOG).level == logging.NOTSET:
    # What paramiko logs at INFO is about each connection, and is of no interest to users.
    logging.getLogger(LOG).setLevel(logging.WARNING)


class ParamikoTransport(Transport):
    """A way to one host by SSH."""

    via = "paramiko"

    def __init__(self, host: Host) -> None:
        self.host = host

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """Connect, log in, start `command`; see `Transport.open`. A busy sshd that hangs up at once is asked again."""
        settings = resolve(self.host)
        hops = connect(self.host, settings, asker)
        with base.closed_on_failure(lambda: close(hops)):
            return ParamikoStream(session(self.host, settings, hops[-1], command), hops)


class _Mute(TimeoutError):
    """A connection was made, and no SSH server has spoken."""


class ParamikoStream:
    """A channel and the connections below it."""

    def __init__(self, channel: paramiko.Channel, hops: list[paramiko.Transport]) -> None:
        self._channel = channel
        self._hops = hops
        self._stderr_tail = b""
        self._closed = False

    def read(self, size: int) -> bytes:
        try:
            self._listen()
            return bytes(self._channel.recv(size))
        except BROKEN:
            # `recv` also sends, to widen the window, so it fails as a write does.
            return b""

    def write(self, data: bytes) -> None:
        try:
            for begin in range(0, len(data), _PACKET):
                self._channel.sendall(data[begin : begin + _PACKET])
        except BROKEN as error:
            raise BrokenPipeError("the connection was lost") from error

    def close(self) -> None:
        self._closed = True
        close(self._hops)

    def cause(self) -> str | None:
        if self._closed or not self._channel.status_event.wait(STATUS_S) and self._hops[-1].is_active():
            return None
        if self._channel.exit_status >= 0:
            return f"it ended with exit status {self._channel.exit_status}"
        return "the connection was lost" if not self._hops[-1].is_active() else "it was ended by a signal"

    def stderr(self) -> str:
        self._listen()
        return self._stderr_tail.decode(errors="replace")

    def _listen(self) -> None:
        while self._channel.recv_stderr_ready():
            self._stderr_tail = (self._stderr_tail + self._channel.recv_stderr(STDERR_KEPT))[-STDERR_KEPT:]


def connect(host: Host, settings: Settings, asker: Asker | None = None) -> list[paramiko.Transport]:
    """Connect through other hosts, and log in; `close` ends all of these connections. Raise as `Transport.open`."""

    def connect_once() -> list[paramiko.Transport]:
        hops: list[paramiko.Transport] = []
        with base.closed_on_failure(lambda: close(hops)):
            _connect(host, settings, hops, asker=asker)
        return hops

    return base.open_with_retries(connect_once, HUNG_UP, base.PAUSES_S[-1])


def session(host: Host, settings: Settings, ssh: paramiko.Transport, command: str) -> paramiko.Channel:
    """Start `command` on a channel of its own."""
    with _translated(host, settings, is_open=True):
        channel = ssh.open_session(timeout=settings.timeout_s)
        # This waits for the answer. Sending earlier would save nothing,
        # because sshd gives a window of 0 bytes until then.
        channel.exec_command(command)
    return channel


def close(hops: list[paramiko.Transport]) -> None:
    """Close connections, the last one first."""
    for ssh in reversed(hops):
        with contextlib.suppress(*BROKEN):
            # Closing sends a message, through a hop whose connection may be lost already.
            ssh.close()
    for ssh in hops:
        # paramiko leaves this thread running. One that runs while the interpreter ends can crash the process.
        if ssh is not threading.current_thread() and ssh.is_alive():
            ssh.join(_JOIN_S)
        if isinstance(ssh.sock, paramiko.ProxyCommand):
            # paramiko ends this process, and leaves it without a waiter and its pipes open.
            ssh.sock.process.kill()
            with ssh.sock.process:
                pass


def _connect(
    host: Host, settings: Settings, hops: list[paramiko.Transport], via: Any = None, asker: Asker | None = None
) -> paramiko.Transport:
    """Connect, check the host key and log in; `hops` gets the connection, after those that it goes through."""
    ssh = meet(host, settings, hops, via, asker=asker)
    with _translated(host, settings):
        key = ssh.get_remote_server_key()
        host_keys.check(settings, host.name, key.get_name(), key.asbytes())
        log_in(ssh, settings, host.name, asker)
        ssh.set_keepalive(SSH_PROBE_S)
    return ssh


def meet(
    host: Host,
    settings: Settings,
    hops: list[paramiko.Transport],
    via: Any = None,
    kinds: tuple[str, ...] = (),
    asker: Asker | None = None,
) -> paramiko.Transport:
    """Connect as far as the host key, which the caller checks, without a login.

    Args:
        hops: Takes this connection, and before it those that it goes through.
        via: What to go through; None goes through the jump hosts of `settings`.
        kinds: The kinds of host key to ask for; empty for all, those that are remembered first.
        asker: For the logins of the jump hosts.
    """
    refuse_unmet(host, settings)
    if len(hops) > HOPS:
        raise HostError(f"The path to {host.name} has more than {HOPS} hops", host=host.name, hint="fix its ProxyJump")
    if via is None and settings.proxy_jump:
        via = _through(host, settings, hops, asker)
    with _translated(host, settings):
        ssh = paramiko.Transport(via or _socket(host, settings))
        hops.append(ssh)
        ssh.set_log_channel(LOG)
        ssh.use_compression(settings.compress)
        ssh.banner_timeout = settings.timeout_s
        options = ssh.get_security_options()
        remembered = {entry.kind for entry in host_keys.known_keys(settings.key_name, settings.known_hosts)}
        remembered |= {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in remembered else set()
        # Prefer kinds that known_hosts has. A host with several keys could otherwise show one that is not known.
        options.key_types = sorted(options.key_types, key=lambda kind: kind not in remembered)
        if kinds:
            options.key_types = [kind for kind in kinds if kind in options.key_types]
        _greet(ssh, settings)
    return ssh


def _greet(ssh: paramiko.Transport, settings: Settings) -> None:
    """Exchange greetings. paramiko raises SSHException also where the other side hangs up, or stays silent.

    Raises:
        EOFError: The other side hung up.
        _Mute: It said nothing in time.
    """
    try:
        ssh.start_client(timeout=settings.timeout_s)
    except paramiko.SSHException as error:
        if isinstance(error.__context__, (EOFError, ConnectionResetError)):
            raise EOFError(str(error)) from error
        if isinstance(error.__context__, socket.timeout):
            raise _Mute(str(error)) from error
        raise
    # `start_client` returns without an error when its time is over.
    if not ssh.initial_kex_done:
        raise _Mute("it has sent no greeting")


def _through(host: Host, settings: Settings, hops: list[paramiko.Transport], asker: Asker | None) -> paramiko.Channel:
    """Open a channel to the host from the last of its jump hosts; each is resolved and checked like any host."""
    via: paramiko.Channel | None = None
    stops = jumps(host, settings)
    for stop, following in zip(stops, [*stops[1:], settings]):
        ssh = _connect(host, stop, hops, via, asker)
        with _translated(host, following):
            via = ssh.open_channel(
                "direct-tcpip", (following.hostname, following.port), ("127.0.0.1", 0), timeout=following.timeout_s
            )
    assert via is not None
    return via


def _socket(host: Host, settings: Settings) -> Any:
    if settings.proxy_command:
        if sys.platform == "win32":
            raise HostError("paramiko runs no ProxyCommand on Windows", host=host.name, hint="use ProxyJump")
        return paramiko.ProxyCommand(settings.proxy_command)
    sock = socket.create_connection((settings.hostname, settings.port), settings.timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextlib.contextmanager
def _translated(host: Host, settings: Settings, is_open: bool = False) -> Iterator[None]:
    """Turn paramiko's errors into ours, by the first row of the table that fits.

    Args:
        is_open: Whether the login is over: if the host then hangs up, something was killed.
    """
    try:
        yield
    except ClusterfnError:
        raise
    except BROKEN as error:
        evidence = [str(error)] if str(error) else []
        if isinstance(error, socket.gaierror):
            raise ssh_errors.unresolved(host, settings, settings.hostname, evidence) from error
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            hint = "the host's sshd is too old or too strict for paramiko; use transport: openssh (needs the system's "
            hint += "ssh), or let its administrator allow rsa-sha2-256 and aes-ctr"
            ours = f"paramiko {paramiko.__version__}"
            raise ssh_errors.no_common(host, settings.place, ours, evidence, hint) from error
        kind = next(kind for met, kind in _TABLE if isinstance(error, met))
        if is_open and kind in ("hung up", "no server"):
            raise ssh_errors.unreachable("hung up", host, settings, evidence) from ConnectionAbortedError(str(error))
        raise ssh_errors.unreachable(kind, host, settings, evidence) from error


_TABLE: tuple[tuple[type[BaseException], str], ...] = (
    (ConnectionRefusedError, "refused"),
    (_Mute, "mute"),
    (TimeoutError, "silent"),
    (socket.timeout, "silent"),
    (paramiko.ChannelException, "no session"),
    (EOFError, "hung up"),
    (OSError, "not reached"),
    (paramiko.SSHException, "no server"),
)
