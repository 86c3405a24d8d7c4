"""Report facts to the supervisor, one JSON line each, without secrets; and receive its orders."""

from __future__ import annotations

# This is the C half alone, because `socket` costs 4 ms to import.
import _socket
import json
import os
import resource
import sys
from typing import Any

from ..supervisor.text import parts_of_secrets
from .descriptors import out_of_reach

# A text in the report has so many characters at most, because it goes into outcome.json. The file of the value has all
# of it.
_SHOWN = 1 << 16
# Of a report, what only people read. The supervisor acts on the rest, which must stay as it is.
_FOR_PEOPLE = frozenset(["message", "note", "hint", "evidence", "path", "traceback"])


# Linux passes on so many descriptors at once.
_MOST_FILES = 253


def open_orders(fd: int) -> _socket.socket:
    """Return the socket through which the supervisor's orders come."""
    connection = _socket.socket(fileno=fd)
    # The environment may have set another default.
    connection.settimeout(None)
    return connection


def receive_order(connection: _socket.socket) -> tuple[bytes, list[int]]:
    """Wait for a line of the supervisor (`WorkerProcess.order`), and the descriptors that come with it.

    Returns:
        The line, b"" if none is to come, and the descriptors, which stay open.
    """
    line, rights, _, _ = connection.recvmsg(1 << 16, _socket.CMSG_SPACE(_MOST_FILES * 4))
    while line and not line.endswith(b"\n"):
        more = connection.recv(1 << 16)
        line = line + more if more else b""
    packed = b"".join(content for _, _, content in rights)
    return line, [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    # Linux counts in kibibytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Report:
    """Sends JSON lines to the supervisor; silent in forked children."""

    def __init__(self, fd: int) -> None:
        self._fd = out_of_reach(fd)
        self._pid = os.getpid()
        self.secrets: list[str] = []

    def hide(self, names: list[str]) -> None:
        """Mask the values of these variables from now on."""
        self.secrets = parts_of_secrets([os.environ[name] for name in names if name in os.environ])

    def send(self, **facts: Any) -> None:
        """Send one line. A broken pipe loses nothing: the supervisor has judged already."""
        if os.getpid() != self._pid:
            return
        if self.secrets:
            facts = _masked(facts, self.secrets)
        data = (json.dumps(_shown(facts)) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BrokenPipeError:
            return


def _masked(facts: dict[str, Any], secrets: list[str]) -> dict[str, Any]:
    """Replace each secret by `***` in what only people read."""
    from _clusterfn_wire import exceptions  # type: ignore[import-not-found]

    def mask(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _masked(value, secrets)
        return exceptions.masked(value, secrets) if name in _FOR_PEOPLE else value

    return {name: mask(name, value) for name, value in facts.items()}


def _shown(value: Any) -> Any:
    """Leave out the middle of each very long text."""
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    if not isinstance(value, str) or len(value) <= _SHOWN:
        return value
    half = _SHOWN // 2
    return "%s\n[... %d characters ...]\n%s" % (value[:half], len(value) - 2 * half, value[-half:])
