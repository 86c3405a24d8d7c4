"""Read the connection file that a Jupyter client writes for its kernel, and listen where it says."""

from __future__ import annotations

import ipaddress
import json
import socket
from dataclasses import dataclass
from pathlib import Path

from clusterfn.bridge.kernel.stream import CHANNEL_NAMES
from clusterfn.errors import ConfigError

_BACKLOG = 16


@dataclass(frozen=True)
class ConnectionFile:
    """What a client says of a kernel.

    Attributes:
        ip: A loopback address.
        ports: Of the five channels, in the order of their numbers.
        key: With it messages are signed.
    """

    path: Path
    ip: str
    ports: tuple[int, ...]
    key: str
    signature_scheme: str


def read_connection_file(path: Path) -> ConnectionFile:
    """Read and check a connection file.

    Raises:
        ConfigError: It does not exist, or asks for what the tunnel must not or cannot do.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        ports = tuple(int(facts[f"{name}_port"]) for name in CHANNEL_NAMES)
        ip, key, transport = str(facts["ip"]), str(facts["key"]), str(facts.get("transport", "tcp"))
    except OSError as error:
        raise _cannot_use(path, f"it cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _cannot_use(path, f"{type(error).__name__}: {error}") from error
    if transport != "tcp":
        raise _cannot_use(path, f"its transport is {transport!r}, and clusterfn can only use tcp")
    try:
        is_loopback = ipaddress.ip_address(ip).is_loopback
    except ValueError:
        is_loopback = ip == "localhost"
    if not is_loopback:
        raise _cannot_use(path, f"its address {ip} is not a loopback address: other machines could reach the kernel")
    if not key:
        raise _cannot_use(path, "it has no key: other users of this machine could run code in the kernel")
    if facts.get("curve_publickey"):
        raise _cannot_use(path, "it asks for CurveZMQ encryption, which clusterfn does not support")
    return ConnectionFile(path, ip, ports, key, str(facts.get("signature_scheme") or "hmac-sha256"))


def listen(file: ConnectionFile) -> dict[int, socket.socket]:
    """Listen on the ports of the five channels; return the listeners by the numbers of their channels.

    Raises:
        ConfigError: A port is taken.
    """
    listeners: dict[int, socket.socket] = {}
    for channel, port in enumerate(file.ports, 1):
        try:
            listeners[channel] = listen_on(file.ip, port)
        except OSError as error:
            for each in listeners.values():
                each.close()
            raise _cannot_use(file.path, f"port {port} of {file.ip}: {error.strerror}") from error
    return listeners


def listen_on(ip: str, port: int) -> socket.socket:
    """Listen on a port of this machine; on any if that is 0.

    Raises:
        OSError: It is taken.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A client that restarts a kernel wants the same ports again, where connections of the last one may still be
        # closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _cannot_use(path: Path, why: str) -> ConfigError:
    hint = "start the kernel from a Jupyter client on this machine, with tcp on 127.0.0.1"
    return ConfigError(f"the connection file {path} cannot be used: {why}", hint=hint)
