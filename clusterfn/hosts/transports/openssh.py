"""Hosts by the system's ssh, with all that it can do and the user's own configuration. One process per stream.

`-v` says when the session is open, and which keys were shown and offered. Its questions come to this process, or it may
not ask. It opens none of the user's tunnels, and uses an open ControlMaster.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError
from clusterfn.hosts.transports import base, ssh_errors
from clusterfn.hosts.transports.base import PATIENCE_S, SSH_PROBE_S, SSH_PROBES, ProcessStream, Stream, Transport
from clusterfn.hosts.transports.prompts import AGAIN, Asker, LoginQuestion, NotAnswered
from clusterfn.hosts.transports.ssh_config import Settings, resolve

LOGIN_S = 30.0
LOOK_S = 0.25
KEPT = 64 * 1024
LOST_STATUS = 255
OPEN = re.compile(rb"debug1: (?:Sending command: |mux_client_request_session: master session id: )[^\n]*\n")
# The ssh of a jump host does not get our options. With these variables, it cannot ask in a window either.
ASK_NOBODY = {"SSH_ASKPASS_REQUIRE": "never", "SSH_ASKPASS": "/bin/false"}

_WORDS = 65536
_YES_OR_NO = re.compile(r"\(yes/no", re.IGNORECASE)
_WHO = re.compile(r"\((\S+@\S+)\) ")
_PROGRAM = """\
import os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
words = [os.environ.get("SSH_ASKPASS_PROMPT", ""), *sys.argv[2:3]]
line.sendall(os.fsencode(chr(0).join(words)))
line.shutdown(socket.SHUT_WR)
answer = line.makefile("rb").read()
sys.stdout.buffer.write(answer[1:])
sys.exit(not answer)
"""


class OpensshTransport(Transport):
    """A way to one host by the system's ssh."""

    via = "openssh"

    def __init__(self, host: Host) -> None:
        self.host = host

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """Connect, log in, start `command`; see `Transport.open`. A busy sshd that hangs up at once is asked again."""
        if not has_ssh():
            message = f"transport: openssh of host {self.host.name} needs an ssh, and this machine has none"
            hint = "install OpenSSH's client, or use transport: paramiko"
            raise ConfigError(message, host=self.host.name, evidence=[self.host.source], hint=hint)
        settings = resolve(self.host)

        def open_once() -> Stream:
            if asker is None or sys.platform == "win32":
                return started(self.host, settings, OpensshStream(argv(settings, command)))
            with AskPass(asker, self.host.name) as asking:
                return started(self.host, settings, OpensshStream(argv(settings, command, asks=True), asking))

        return base.open_with_retries(open_once, (ConnectionResetError,), base.PAUSES_S[-1])


def started(host: Host, settings: Settings, stream: OpensshStream) -> OpensshStream:
    """Return the stream once its session is open; raise HostError or ConfigError with the reason that ssh gave."""
    patience = patience_s(settings)
    with base.closed_on_failure(stream.close):
        if stream.wait_open(patience):
            return stream
        code = stream.code()
        if code is not None:
            error = ssh_errors.error_of(host, settings, stream.before(), code, asked=stream.asking is not None)
            if stream.asking is not None and stream.asking.count > 0:
                # A login at which a person was asked is not repeated: it would ask for another code.
                error.__cause__ = ConnectionError(*error.__cause__.args if error.__cause__ else ())
            raise error
        evidence = [line.rstrip() for line in stream.before().splitlines()][-ssh_errors.EVIDENCE_LINES :]
        raise ssh_errors.unreachable("ended", host, settings, evidence, how=f"not within {patience:g} s")


class OpensshStream(ProcessStream):
    """A running ssh. What it writes to stderr before its session is open is kept apart: it explains a failure.

    Attributes:
        asking: Asks a person; None if no person can be asked.
    """

    def __init__(self, line: Sequence[str], asking: AskPass | None = None) -> None:
        self._before = b""
        # Whether the session was opened. The thread that listens sets it, at the latest when stderr ends.
        self._session: concurrent.futures.Future[bool] = concurrent.futures.Future()
        self.asking = asking
        self._lines_reported = 0
        if asking is not None:
            asking.about = self._recent_lines
        super().__init__(line, {**os.environ, **(asking.env if asking else ASK_NOBODY)})

    def wait_open(self, timeout_s: float) -> bool:
        """Whether the session was opened; False if ssh ended before, or after `timeout_s` without a person's time."""
        began = time.monotonic()
        while not self._session.done() and self.process.poll() is None:
            if time.monotonic() > began + timeout_s + (self.asking.spent_s if self.asking else 0.0):
                break
            if self.asking is None:
                concurrent.futures.wait([self._session], LOOK_S)
            else:
                self.asking.serve(LOOK_S)
        if self.process.poll() is not None:
            # The last lines of its stderr may still be on their way. Do
            # not wait for long, as a child may hold the pipe.
            concurrent.futures.wait([self._session], 2 * LOOK_S)
        return self._is_open()

    def _recent_lines(self) -> str:
        """Return what ssh has said to a person since the last call: a menu, or that an answer was wrong."""
        lines = self.before().splitlines()
        new, self._lines_reported = lines[self._lines_reported :], len(lines)
        return "\n".join(line for line in new if line.strip() and not re.match(ssh_errors.CHATTER, line))

    def _is_open(self) -> bool:
        return self._session.done() and self._session.result()

    def _decide(self, is_open: bool) -> None:
        self._session.set_result(is_open)
        if self.asking is not None:
            self.asking.wake()

    def code(self) -> int | None:
        """Return how ssh ended; None if it has not."""
        return self.process.wait(PATIENCE_S) if self._session.done() else self.process.poll()

    def before(self) -> str:
        """Return what ssh said before the session was open."""
        return self._before.decode(errors="replace")

    def close(self) -> None:
        self._close(PATIENCE_S if self._is_open() else 0)

    def cause(self) -> str | None:
        reason = super().cause()
        if reason is None or self.process.returncode != LOST_STATUS:
            return reason
        self._listener.join(PATIENCE_S)
        return ssh_errors.lost(self._stderr_tail.decode(errors="replace")) or reason

    def stderr(self) -> str:
        return ssh_errors.without_chatter(super().stderr())

    def _listen(self) -> None:
        try:
            super()._listen()
        finally:
            if not self._session.done():
                self._decide(False)

    def _hear(self, piece: bytes) -> None:
        if self._is_open():
            super()._hear(piece)
            return
        self._before = (self._before + piece)[-KEPT:]
        match = OPEN.search(self._before)
        if match:
            early = ""
            if b"mux_client" in match[0]:
                # The shared master itself writes the command's stderr, perhaps
                # before this line, so those lines belong to the command.
                early = ssh_errors.without_chatter(self._before[: match.start()].decode(errors="replace"))
            super()._hear(early.encode() + self._before[match.end() :])
            self._decide(True)


class AskPass:
    """Answers the questions of one ssh, and of those that it starts for jump hosts.

    Its SSH_ASKPASS is a small program that asks this process over a socket. Only passwords, codes and passphrases: a
    yes-or-no question, such as that about an unknown host key, is rejected. Not on Windows.

    Args:
        who: Who asks, where ssh does not say it.

    Attributes:
        about: Returns what the person should read before the question.
        env: The environment variables of that ssh.
        spent_s: How long the person has taken for all answers so far.
        count: How many questions the person was asked.
    """

    env: Mapping[str, str]
    _folder: Path
    _address: str
    _listener: socket.socket

    def __init__(self, asker: Asker, who: str) -> None:
        self._asker, self._who = asker, who
        self.about: Callable[[], str] = lambda: ""
        self._last = ""
        self.spent_s = 0.0
        self.count = 0
        if sys.platform == "win32":
            raise NotImplementedError("clusterfn cannot answer ssh's questions on Windows")
        # Not TMPDIR, whose path may be too long for a socket.
        self._folder = Path(tempfile.mkdtemp(prefix="clusterfn-ask-", dir="/tmp"))
        self._listener = socket.socket(socket.AF_UNIX)
        program = self._folder / "ask"
        self._address = str(self._folder / "s")
        words = [sys.executable, "-I", "-S", "-c", _PROGRAM, self._address]
        # SSH_ASKPASS names a program without arguments, and Python's path may have spaces. So write a shell script.
        with base.closed_on_failure(self.__exit__):
            program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
            program.chmod(0o700)
            self._listener.bind(self._address)
            self._listener.listen()
        # An ssh before 8.4 does not know SSH_ASKPASS_REQUIRE. It asks this way if DISPLAY is set and it has no
        # terminal, and it never has one here.
        display = os.environ.get("DISPLAY") or ":"
        self.env = {"SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": display}

    def __enter__(self) -> AskPass:
        return self

    def __exit__(self, *_: object) -> None:
        # This also ends questions that came too late. Their ssh takes that for a refusal.
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wake(self) -> None:
        """End a wait in `serve`."""
        with contextlib.suppress(OSError), socket.socket(self._listener.family) as line:
            # The login may be over already, and with it the socket.
            line.setblocking(False)
            line.connect(self._address)

    def serve(self, timeout_s: float) -> None:
        """Wait at most so long for one question, and have it answered in this thread."""
        self._listener.settimeout(timeout_s)
        try:
            call, _ = self._listener.accept()
        except OSError:
            # No question came in time.
            return
        began = time.monotonic()
        with call:
            self._answer(call)
        self.spent_s += time.monotonic() - began

    def _answer(self, call: socket.socket) -> None:
        hint, separator, prompt = os.fsdecode(call.makefile("rb").read(_WORDS)).partition("\0")
        if hint or not separator or _YES_OR_NO.search(prompt):
            # `wake` says nothing. A hint is "confirm", or "none" for a message that needs no answer. None of them asks
            # for a secret.
            return
        who = _WHO.match(prompt)
        self.count += 1
        about = self.about() or (AGAIN if prompt == self._last else "")
        self._last = prompt
        question = LoginQuestion(prompt[who.end() :] if who else prompt, who[1] if who else self._who, about)
        with contextlib.suppress(NotAnswered, OSError):
            call.sendall(b"\n" + self._asker(question).encode(errors="surrogateescape") + b"\n")


def has_ssh() -> bool:
    """Whether there is an ssh on this machine."""
    return shutil.which("ssh") is not None


def patience_s(settings: Settings) -> float:
    """Return how long a session may take to open: each connection on the way, and the login."""
    return settings.timeout_s * (1 + len(settings.proxy_jump)) + LOGIN_S


def argv(settings: Settings, command: str, *, asks: bool = False) -> list[str]:
    """Build the ssh command for a stream, as `line`; it uses the user's own ControlMaster if one is open."""
    # On Windows, ssh has no ControlMaster, and fails with a ControlPath.
    mux = ["ControlMaster=no", *(["ControlPath=none"] if sys.platform == "win32" else [])]
    return line(settings, mux, command, asks=asks)


def line(settings: Settings, mux: Sequence[str], command: str, *, asks: bool = False) -> list[str]:
    """Build an ssh command with our options. StrictHostKeyChecking is as the user has it, except `no`.

    Args:
        mux: Options about ControlMaster; they come first, so that they count.
        asks: Whether it may ask for passwords and codes; never for a host key.
    """
    unsafe = ("false", "ask") if asks else ("false",)
    options = [
        *mux,
        *([] if asks else ["BatchMode=yes"]),
        "ClearAllForwardings=yes",
        # With a forwarded agent, root on the host could use the user's keys. The option above does not turn it off.
        "ForwardAgent=no",
        f"ConnectTimeout={max(1, round(settings.timeout_s))}",
        f"ServerAliveInterval={SSH_PROBE_S}",
        f"ServerAliveCountMax={SSH_PROBES}",
        *(["StrictHostKeyChecking=yes"] if settings.strict in unsafe else []),
        *(["Compression=yes"] if settings.compress else []),
        *settings.instead,
    ]
    flags = [f"-o{option}" for option in options]
    return ["ssh", "-T", "-x", "-v", *flags, *way(settings), "--", settings.alias, command]


def way(settings: Settings) -> list[str]:
    """Return the options of ssh that say how to reach the host, without its name."""
    return [*(["-F", settings.config_file] if settings.config_file else []), *settings.named]
