"""Files of Jupyter's: the connection file that a client writes for its kernel, and where to listen by it; and the
kernelspecs that start a kernel on a host, which Jupyter and VS Code read to offer it to their user.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.kernel.stream import CHANNEL_NAMES
from clusterfn.config import config_file, places
from clusterfn.config.environment_kinds import names_a_file, split_file
from clusterfn.errors import ClusterfnError, ConfigError

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpecManager

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
    """Read a connection file; raise ConfigError if it does not exist, or asks for what the tunnel does not do."""
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
    """Listen on the ports of the five channels; return each by its channel; raise ConfigError if one is taken."""
    listeners: dict[int, socket.socket] = {}
    for channel, port in enumerate(file.ports, 1):
        try:
            listeners[channel] = listen_on(file.ip, port)
        except OSError as error:
            for listener in listeners.values():
                listener.close()
            raise _cannot_use(file.path, f"port {port} of {file.ip}: {error.strerror}") from error
    return listeners


def listen_on(ip: str, port: int) -> socket.socket:
    """Listen on a port of this machine; on any if that is 0; raise OSError if it is taken."""
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


CONNECTION_FILE = "{connection_file}"
_RUN = ["kernel", "run"]


def add_kernelspec(shown: str, host: str, options: Sequence[str]) -> str:
    """Write a kernelspec for this user, and return its name; replace one of the same name.

    Args:
        shown: What users choose it by.
        options: As they are written after `clusterfn kernel run`, with the host.

    Raises:
        ConfigError: The name has no letter or digit, or another program's kernelspec has it.
    """
    manager = _manager()
    name = re.sub(r"[^a-z0-9._-]+", "-", shown.lower()).strip("-._")
    if not name:
        raise ConfigError(f"the name {shown!r} has no letter and no digit", hint='write --name "tensor01 · 1 GPU"')
    existing = manager.find_kernel_specs().get(name)
    if existing and not _is_ours(existing):
        problem = f"there is a kernel {name!r} already, and clusterfn has not added it: {existing}"
        raise ConfigError(problem, hint="choose another --name")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(_content(shown, host, options), indent=1), encoding="utf-8")
        manager.install_kernel_spec(folder, name, user=True)
    return name


def _is_ours(folder: str) -> bool:
    try:
        content = json.loads(Path(folder, "kernel.json").read_text(encoding="utf-8"))
        return "clusterfn" in content["metadata"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _content(shown: str, host: str, options: Sequence[str]) -> dict[str, Any]:
    """Return kernel.json. argv[0] is absolute, as VS Code hides others; an interrupt is a message, as SIGINT is not
    sent on Windows. The debugger would open ports without a password."""
    config = config_file.load().path
    return {
        "argv": [*_command(), *_RUN, *options, CONNECTION_FILE],
        "display_name": shown,
        "language": "python",
        "interrupt_mode": "message",
        "env": {places.VARIABLE: str(config.absolute())} if config else {},
        "metadata": {"debugger": False, "clusterfn": {"host": host}},
    }


def _command() -> list[str]:
    """Return the words that start clusterfn, the first an absolute path."""
    script = Path(sysconfig.get_path("scripts"), "clusterfn.exe" if sys.platform == "win32" else "clusterfn")
    return [str(script)] if script.exists() else [sys.executable, "-m", "clusterfn"]


def absolute_environment(environment: str | None) -> str | None:
    """Return an environment, a file by its whole path; raise ConfigError if there is no such file."""
    if environment is None or not names_a_file(environment):
        return environment
    path = places.expanded(environment).absolute()
    file = Path(split_file(str(path))[0])
    if not file.is_file():
        raise ConfigError(f"there is no file {file}", hint="correct --environment")
    return str(path)


def _manager() -> KernelSpecManager:
    try:
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as error:
        hint = f"{sys.executable} -m pip install '.[notebook]' in your clone of clusterfn"
        raise ClusterfnError("kernelspecs need jupyter_client, which is not installed", hint=hint) from error
    return KernelSpecManager()
