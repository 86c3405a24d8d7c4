"""Read and write the frames of the protocol (docs/reference/protocol.md); turn error frames into exceptions."""

from __future__ import annotations

import json
import re
import shlex
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.config.config_file import LOCAL
from clusterfn.config.host_text import shell_word
from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError, HostDiskFull, HostError

if TYPE_CHECKING:
    from clusterfn.hosts.transports import Stream

CHUNK = 256 * 1024
# The most bytes of a body. A frame that announces more is rejected as garbage.
LONGEST = 64 * 2**20
# The most bytes of a header. As Python objects, its JSON may take thirty times as much memory.
LONGEST_HEADER = 8 * 2**20
SHOWN = 64
# Ask the stream for no fewer bytes.
_AT_ONCE = 4096
# The lengths of the header (4 bytes) and of the body (8 bytes), in network byte order.
FRAME = struct.Struct("!IQ")
# The number of the first request to an agent.
HELLO_ID = 1
# This is EDQUOT on Linux hosts. The local machine may have another number for it, so `errno` does not help.
_QUOTA = 122
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")

Header = dict[str, Any]


def pack(header: Header, *body: bytes | memoryview) -> bytes:
    """Return one frame; its body may be in several pieces."""
    text = json.dumps(header).encode()
    return b"".join((FRAME.pack(len(text), sum(map(len, body))), text, *body))


class FrameReader:
    """Frames from a stream, whatever pieces it comes in.

    Args:
        read: As `Stream.read`.
        data: What was already read.

    Attributes:
        on_part: Called when a part of a frame has come.
    """

    def __init__(self, read: Callable[[int], bytes], data: bytes = b"") -> None:
        self.on_part: Callable[[], None] = lambda: None
        self._read = read
        self._data = bytearray(data)

    def frame(self) -> tuple[Header, bytes] | None:
        """Read the next frame, None once the stream has ended; raise HostError if it is none: all after it is lost."""
        if not self._fill(FRAME.size):
            return None
        head, body = map(int, FRAME.unpack_from(self._data))
        middle, end = FRAME.size + head, FRAME.size + head + body
        if head > LONGEST_HEADER or body > LONGEST:
            raise no_frame(f"it would have {end} bytes", self._data)
        if not self._fill(middle):
            return None
        header = _header(bytes(self._data[FRAME.size : middle]))
        if not self._fill(end):
            return None
        with memoryview(self._data) as view:
            content = bytes(view[middle:end])
        del self._data[:end]
        return header, content

    def _fill(self, size: int) -> bool:
        """Read until there are so many bytes; return False if the stream ends before."""
        while len(self._data) < size:
            piece = self._read(max(_AT_ONCE, size - len(self._data)))
            if not piece:
                return False
            self._data += piece
            self.on_part()
        return True


def _header(text: bytes) -> Header:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise no_frame(f"its header is not JSON: {error}", text) from error
    if not isinstance(header, dict) or not isinstance(header.get("id"), int):
        raise no_frame("it names no request", text)
    failure = header.get("error")
    is_error = isinstance(failure, dict) and all(isinstance(failure.get(name), str) for name in ("kind", "message"))
    if header.get("end") and header.get("ok") is not True and not is_error:
        raise no_frame("it must end with success or an error, and does neither", text)
    return header


def no_frame(why: str, data: bytes | bytearray) -> HostError:
    """Return the error for what is no frame, with its first bytes."""
    hint = "check whether something on the host writes into the connection, such as a program started by an rc file"
    message, shown = f"The host sent an invalid frame: {why}", repr(bytes(data[:SHOWN]))
    return HostError(message, evidence=[shown], hint=hint, retryable=True)


def error_of(host: Host, data: Header) -> HostError:
    """Return the exception for an error frame, with the frame's `kind` and `path` as attributes."""
    kind, reason, path = data["kind"], data["message"], data.get("path")
    path = path if isinstance(path, str) else ""
    root = f"set root: of host {host.name} ({host.source}) to"
    if host == LOCAL:
        root = "in clusterfn.yml, add `hosts: {local: {scheduler: local, root: FOLDER}}` with"
    where = f" ({path})" if path else ""
    error = HostError(f"{host.name} could not carry out the request{where}: {reason}", host=host.name)
    if kind == "full":
        error = _full(host, data, path)
    elif kind == "denied":
        hint = f"{root} a folder that you can write to"
        error = HostError(f"{path or 'A file'} on {host.name} cannot be used: {reason}", host=host.name, hint=hint)
    elif kind == "refused":
        hint = f"{root} a folder in your home; if you trust who can write to it, name that user or group in owners:"
        own = f"run `chmod go-w {shell_word(path)}` on {host.name}"
        theirs = f"run `mv {shell_word(path)} {shell_word(path + '.theirs')}` on {host.name}"
        message = f"{path} on {host.name} is not safe to use: {reason}"
        below = theirs if data.get("below") else hint
        error = HostError(message, host=host.name, hint=own if data.get("own") else below)
    elif kind == "missing":
        error = HostError(f"{path or 'The file'} does not exist on {host.name}", host=host.name, evidence=[reason])
    elif kind == "changed":
        hint = "try again; a program that writes a new file and renames it never leaves half of one"
        error = HostError(f"{path} on {host.name} has changed: {reason}", host=host.name, hint=hint)
    elif kind == "bad" and reason.startswith("the root ") and (unset := _VARIABLE.search(path)):
        # Usually this is a variable that only login shells set, and a command over ssh runs without one.
        config = f"-F {shlex.quote(host.ssh_config)} " if host.ssh_config else ""
        log_in = f"`ssh {config}{host.address}`, then " if host.address else ""
        hint = f"write the full path ({log_in}`echo {unset[0]}` in a login shell shows it)"
        message, written = f"{unset[0]} is not set in a non-interactive shell of {host.name}", f"root: {host.root}"
        error = HostError(message, host=host.name, evidence=[f"{written} ({host.source})"], hint=hint)
    error.kind, error.path = kind, path
    return error


def wrapped(host: str, error: BaseException, message: str) -> ClusterfnError:
    """Return an error of the library as it is, and any other as the cause of one with this message."""
    if isinstance(error, ClusterfnError):
        return error
    host_error = HostError(message, host=host, evidence=[f"{type(error).__name__}: {error}"])
    host_error.__cause__ = error
    return host_error


def _full(host: Host, data: Header, path: str) -> HostError:
    amounts = [("free", data.get("free")), ("needed", data.get("needed"))]
    hint, message = "free some", f"No space is left on {host.name} for {path}"
    if data.get("files") == 0:
        hint, message = "remove files", f"No more files can be made on {host.name} for {path}: the inodes are used up"
    if data.get("errno") == _QUOTA:
        message = f"Your disk quota on {host.name} leaves no space for {path}"
        # The free space of the disk would mislead here, because the quota does not let this user have it.
        amounts = amounts[1:]
    valid = [(word, amount) for word, amount in amounts if type(amount) is int and 0 <= amount < 2**63]
    summary = ", ".join(f"{format_size(amount)} {word}" for word, amount in valid)
    hint += f" (old jobs are in {host.root}/jobs), and call again; or set root: of host {host.name}"
    hint += f" ({host.source}) to a larger file system"
    evidence = [data["message"], *([summary] if summary else [])]
    return HostDiskFull(message, host=host.name, evidence=evidence, hint=hint, retryable=True)


@dataclass
class AgentStream:
    """A stream whose agent has said hello; `noise` begins what the login shell printed before."""

    stream: Stream
    reader: FrameReader
    hello: Header
    noise: str = ""
