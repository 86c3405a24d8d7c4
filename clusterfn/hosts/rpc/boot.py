"""From a transport to an agent that answers: one round trip, through any login shell.

The remote command is the same for every host and user: what varies goes over stdin.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import os
import re
import secrets
import shlex
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostError, Unreachable
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.frames import CHUNK, HELLO_ID, AgentStream, FrameReader, Header, error_of, no_frame, pack
from clusterfn.hosts.transports import Asker, Stream, Transport
from clusterfn.hosts.transports.base import closed_on_failure
from clusterfn.scheduler import kind_of_site

MARKER_S = 30.0
HELLO_S = 60.0
NOISE_KEPT = 64 * 1024
NOISE_SHOWN = 2048
EVIDENCE_LINES = 20

# Free of "!", newlines, backslashes and single quotes inside, and below 1024 bytes: csh and fish pass it through.
# The first line that is not empty names the wanted interpreter: an rc file with a `read` eats an empty line instead.
# Interpreters that are too old leave with 77 before they have read anything.
_READ_LINES = (
    "while 1: import os, sys; sys.version_info >= (3, 6) or os._exit(77); "
    "exec(bytes(iter(lambda: os.read(0, 1)[0], 10)))"
)
COMMAND = (
    "exec /bin/sh -c '"
    't() { [ -x "$1" ] || return 0; "$1" -E -s -c "' + _READ_LINES + '"; r=$?; '
    'case $r in 77|126|127) o="$o $1" ;; *) exit $r ;; esac; }; '
    'while IFS= read -r w && [ -z "$w" ]; do :; done; '
    'case "$w" in "~/"*) w="$HOME/${w#??}" ;; */*) ;; *) [ "$w" = auto ] || w=$(command -v "$w") ;; esac; '
    'if [ "$w" = auto ]; then '
    't "$(command -v python3)"; t /usr/libexec/platform-python; '
    'case "$SHELL" in *csh) ;; *) '
    't "$(timeout 5 "$SHELL" -lc "command -v python3" </dev/null 2>/dev/null | grep ^/ | tail -n 1)" ;; esac; '
    'for d in "$HOME/miniconda3" "$HOME/miniforge3" "$HOME/anaconda3" /opt/conda /opt/miniconda3; do '
    't "$d/bin/python3"; done; '
    'else t "$w"; fi; '
    "echo CLUSTERFN-NO-PYTHON:$o; exit 78'"
)
# Such lines stay, but empty, so that tracebacks have the right numbers.
_COMMENT = re.compile(r"^ *#.*$", re.MULTILINE)
_LOADER = """\
import os, sys
sys.path[:] = [folder for folder in sys.path if folder]
import base64, json, zlib
data = b''
while len(data) < %d:
    piece = os.read(0, %d - len(data))
    if not piece:
        os._exit(1)
    data += piece
sources = json.loads(zlib.decompress(base64.b64decode(data)).decode())
space = {'__name__': 'clusterfn_bootstrap'}
exec(compile(sources['bootstrap.py'], 'clusterfn-agent/bootstrap.py', 'exec'), space)
space['start'](sources, '%s' '%s')
"""
NO_LOGIN = re.compile(r"^This account is (?:currently )?not available", re.MULTILINE)
NO_PYTHON = "CLUSTERFN-NO-PYTHON:"
# What `Stream.cause` says where a process was killed or a connection was lost: a shell adds 128 to a signal's number,
# and ssh ends with 255. An rc file that exits has other numbers.
_CUT_OFF = re.compile(r"the connection was lost|ended by (?:a )?signal|exit status (?:129|137|143|255)$")
_AGENT = Path(__file__).parents[2] / "bridge" / "agent"
LOOKED_AT = "python3 in PATH, /usr/libexec/platform-python, python3 of a login shell, conda in the home and in /opt"


def boot(transport: Transport, host: Host, have: Sequence[str] = (), asker: Asker | None = None) -> AgentStream:
    """Open a stream, start the agent there and say hello.

    Args:
        asker: As for `Transport.open`.

    Raises:
        HostError: No Python, no agent, or a root that cannot be used; what the host has printed is the evidence.
    """
    python = wanted_python(host)
    first = pack({"id": HELLO_ID, "do": "hello", **greeting(host, have)})
    stream = transport.open(COMMAND, asker)
    with closed_on_failure(stream.close):
        return _start(stream, host, python, first)


def greeting(host: Host, have: Sequence[str] = ()) -> Header:
    """Return what a hello tells the agent. A later one changes where programs are found."""
    return {"root": host.root, "have": list(have), "owners": list(host.owners), "commands": commands_of(host)}


def commands_of(host: Host) -> Header:
    """Return where the commands of the host's scheduler are, and the one that its agent must find to submit a job."""
    kind = kind_of_site(host.scheduler)
    programs = list(kind.commands.programs[:1]) if kind else []
    return {"path": list(host.scheduler_path), "env": dict(host.scheduler_env), "programs": programs}


def own_python() -> str:
    """Return the path of this interpreter; "" where Python is embedded in another program, or the path is unusual."""
    own = sys.executable or ""
    usable = os.path.basename(own).startswith(("python", "pypy")) and os.path.isabs(own) and not {"$", "\n"} & set(own)
    return own if usable else ""


def wanted_python(host: Host) -> str:
    """Return the interpreter as the remote command reads it: one line."""
    python = host.python or (own_python() if host.is_this_machine else "") or "auto"
    if "\n" in python or "$" in python:
        raise ConfigError(
            f"python: {python!r} of host {host.name} cannot be used",
            host=host.name,
            evidence=[host.source],
            hint="write an absolute path, one that begins with ~/, or a program's name",
        )
    return python


def _start(stream: Stream, host: Host, python: str, first: bytes) -> AgentStream:
    marker = secrets.token_hex(16)
    # The command may have ended already. Ignore the error here, because what it has printed says why.
    with _deadline(stream, MARKER_S), contextlib.suppress(OSError):
        stream.write(preface(python, marker) + first)
    printed, rest = _until_marker(stream, marker)
    if rest is None:
        raise _no_agent(host, stream, printed)
    reader, asked_at = FrameReader(stream.read, rest), time.monotonic()
    with _deadline(stream, HELLO_S):
        answer = reader.frame()
    if answer is None:
        is_late, cause = time.monotonic() - asked_at >= HELLO_S, stream.cause()
        how = f"did not answer within {HELLO_S:g} s" if is_late else f"ended before its hello: {cause}"
        raise _ended(cause, f"The agent on {host.name} {how}", host=host.name, evidence=_lines(stream.stderr()))
    hello, _ = answer
    if hello["id"] != HELLO_ID or not hello.get("end"):
        raise no_frame("it is not an answer to the first request", repr(hello).encode())
    if not hello.get("ok"):
        raise error_of(host, hello["error"])
    return AgentStream(stream, reader, hello, printed[:NOISE_SHOWN].decode(errors="replace"))


def preface(python: str, marker: str) -> bytes:
    """Return what `COMMAND` reads first: the interpreter's name, and two lines for it that start the agent.

    The second line is the agent, and the first is a program that reads it. The marker is in it in two pieces, so that a
    shell that echoes these lines does not print the marker.
    """
    line = agent_line()
    program = _LOADER % (len(line), len(line), marker[:8], marker[8:])
    # An rc file of the login shell may read lines that are meant for the command, so send empty lines first.
    return b"\n" * 8 + f"{python}\nexec({program!r})\n".encode() + line


@functools.cache
def agent_line() -> bytes:
    """Return the agent as one line; made once, because that takes milliseconds."""
    return line_of(agent_sources())


def agent_sources() -> Mapping[str, str]:
    """Return the agent's modules: file name to text. Each connection sends them, without their lines of comments."""
    return {path.name: _COMMENT.sub("", path.read_text(encoding="utf-8")) for path in _AGENT.glob("*.py")}


def line_of(sources: Mapping[str, str]) -> bytes:
    """Return modules as the loader reads them."""
    text = json.dumps(dict(sorted(sources.items()))).encode()
    # Level 9 takes twice as long and saves only 1 % more.
    return base64.b64encode(zlib.compress(text, 6)) + b"\n"


def _until_marker(stream: Stream, marker: str) -> tuple[bytes, bytes | None]:
    """Return what was printed before the marker, and what came after it (None: no marker)."""
    sought = marker.encode() + b"\n"
    printed = b""
    with _deadline(stream, MARKER_S):
        while sought not in printed:
            piece = stream.read(CHUNK)
            if not piece:
                return printed, None
            printed += piece
            # An rc file may print without end. Keep the beginning as
            # evidence, and the end because the marker may be in it.
            printed = printed[:NOISE_SHOWN] + printed[NOISE_SHOWN:][-NOISE_KEPT:]
    before, _, after = printed.partition(sought)
    return before, after


@contextlib.contextmanager
def _deadline(stream: Stream, seconds: float) -> Iterator[None]:
    """Close the stream after some seconds, so that a blocked read returns."""

    async def give_up() -> None:
        await asyncio.sleep(seconds)
        await loop.in_thread(stream.close, "clusterfn-hang-up")

    giving_up = loop.start(give_up())
    try:
        yield
    finally:
        giving_up.cancel()


def _no_agent(host: Host, stream: Stream, printed: bytes) -> HostError:
    text = printed.decode(errors="replace")
    before, separator, tried = text.rpartition(NO_PYTHON)
    evidence = _lines(before if separator else text) + _lines(stream.stderr())
    if separator:
        looked = host.python or LOOKED_AT
        paths = re.split(r"\s+(?=/)", tried.rstrip())[1:]
        unusable = [f"older than 3.6, or does not start: {path}" for path in paths]
        hint = f"set python: /path/to/python3 under host {host.name} ({host.source})"
        message = f"No Python 3.6 or newer was found on {host.name}"
        evidence = [f"searched: {looked}", *unusable, *evidence]
        return HostError(message, host=host.name, evidence=evidence, hint=hint)
    if NO_LOGIN.search(text):
        return HostError(
            f"The account on {host.name} has no login shell (nologin)",
            host=host.name,
            evidence=evidence,
            hint="ask the administrator for a login shell, or use another account: address: user@name",
        )
    cause = stream.cause()
    if cause is None:
        message = f"The agent on {host.name} did not start within {MARKER_S:g} s"
    else:
        message = f"The login shell on {host.name} did not start the agent: {cause}"
    config = f"-F {shlex.quote(host.ssh_config)} " if host.ssh_config else ""
    command = f"ssh {config}{host.address} 'echo hello'" if host.address else "/bin/sh -c 'echo hello'"
    hint = f"check that `{command}` prints hello; an rc file must not exit, wait or start another shell for "
    hint += 'commands: look for "exit" in ~/.bashrc of the host'
    return _ended(cause, message, host=host.name, evidence=evidence, hint=hint)


def _ended(cause: str | None, message: str, **facts: Any) -> HostError:
    """Return the error for a stream that has ended; one that was cut off has a ConnectionAbortedError as its cause."""
    if cause is None or not _CUT_OFF.search(cause):
        return HostError(message, **facts)
    error = Unreachable(message, retryable=True, **facts)
    error.__cause__ = ConnectionAbortedError(cause)
    return error


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()][-EVIDENCE_LINES:]
