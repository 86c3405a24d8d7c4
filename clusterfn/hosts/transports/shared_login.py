"""Log in once for all programs of this user: `clusterfn login`, `logout`, and the transport that reuses a login.

A ControlMaster of our own holds a connection: the system's ssh in the background, with its socket in our folder. It
ends itself once it was unused for the host's `login_ttl` (ControlPersist), or when the connection dies. Not on
Windows, whose ssh has no ControlMaster. A login that needed a person is never repeated without that person.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostError
from clusterfn.hosts.transports import held_connections, openssh, prompts, ssh_errors
from clusterfn.hosts.transports.base import Stream, Transport
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.hosts.transports.openssh import AskPass, OpensshStream
from clusterfn.hosts.transports.prompts import Asker, LoginQuestion
from clusterfn.hosts.transports.ssh_config import Settings, resolve

CHECK_S = 5.0
GONE_S = 10.0
_LOOK_S = 0.1
_VIA = "openssh (clusterfn login)"
_PID = re.compile(r"pid=(\d+)")
_REFUSED = re.compile(r"mux_client_request_session: session request failed: .*")


def can_hold(host: Host) -> bool:
    """Whether a connection to the host can be held: by the system's ssh, if its transport may use that one."""
    return host.transport in ("auto", "openssh") and sys.platform != "win32" and openssh.has_ssh()


def log_in(host: Host, asker: Asker | None) -> tuple[HeldConnection, bool]:
    """Hold a connection to the host; return what is held, and whether that is new.

    Args:
        asker: Asks for passwords and codes; None: only a login that needs no person works.

    Raises:
        ConfigError: The host is this machine, or this machine cannot hold a connection to it.
        HostError: As `Transport.open`.
    """
    settings = _by_ssh(host)
    if not can_hold(host):
        if sys.platform == "win32":
            message = "Windows's ssh cannot hold a connection for all programs: it has no ControlMaster"
            hint = "use clusterfn inside WSL; otherwise you log in for each program"
        elif openssh.has_ssh():
            message = f"transport: paramiko of host {host.name} cannot hold a connection: only the system's ssh can"
            raise ConfigError(message, host=host.name, evidence=[host.source], hint="use transport: auto or openssh")
        else:
            message = "Holding a connection needs the system's ssh, and this machine has none"
            hint = "install OpenSSH's client; otherwise you log in for each program"
        raise ConfigError(message, host=host.name, hint=hint)
    before = find_held(settings)
    if before is not None and _pid(Path(before.address)) is not None:
        return before, False
    return _start_master(host, settings, asker), True


def log_out(host: Host) -> bool:
    """End what is held to the host; return whether there was something; raise ConfigError for this machine."""
    settings = _by_ssh(host)
    held = find_held(settings) if can_hold(host) else None
    if held is None:
        return False
    end(held)
    left = held_connections.find_record(held.key)
    if left is not None:
        held_connections.forget_record(left)
    return True


def end(held: HeldConnection) -> None:
    """End it, and wait for a time until its process is gone."""
    _ask(Path(held.address), "exit")
    deadline = time.monotonic() + GONE_S
    while held_connections.is_running(held.pid) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def find_held(settings: Settings) -> HeldConnection | None:
    """Return what is held by this way to the host; remove the record of a dead connection."""
    record = held_connections.find_record(held_connections.key_of(settings))
    return record if record is None or _lives(record) else None


def all_held() -> Iterator[HeldConnection]:
    """Yield all that is held; remove the records of dead connections."""
    yield from filter(_lives, held_connections.all_records() if sys.platform != "win32" else ())


def _lives(held: HeldConnection) -> bool:
    """Whether its process and its socket exist; if not, remove its record. A question to it would count as use."""
    alive = Path(held.address).is_socket() and held_connections.is_running(held.pid)
    if not alive:
        held_connections.forget_record(held)
    return alive


def is_held(host: Host) -> bool:
    """Whether a connection to the host is held. Looks at this machine alone."""
    return can_hold(host) and held_connections.has_records() and find_held(resolve(host)) is not None


def _by_ssh(host: Host) -> Settings:
    if not host.address:
        raise ConfigError(f"{host.name} is this machine, which needs no ssh", host=host.name)
    return resolve(host)


class ReusingTransport(Transport):
    """A way to one host through what is held, else by `own`."""

    def __init__(self, host: Host, own: Transport) -> None:
        self.host = host
        self.via = ""
        self._own = own
        self._by_person = False

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """See `Transport.open`.

        Raises:
            AuthenticationError: Also where a person has logged in before, and no person can be asked now.
        """
        through = self._through_held(command) if can_hold(self.host) and held_connections.has_records() else None
        if through is not None:
            self.via = _VIA
            return through
        if self._by_person and asker is None:
            raise prompts.needs_you(self.host.name, can_hold=can_hold(self.host))

        def ask(question: LoginQuestion) -> str:
            assert asker is not None
            self._by_person = True
            return asker(question)

        stream = self._own.open(command, ask if asker is not None else None)
        self.via = self._own.via
        return stream

    def _through_held(self, command: str) -> Stream | None:
        settings = resolve(self.host)
        held = find_held(settings)
        if held is None:
            return None
        self._by_person = self._by_person or held.asked
        try:
            stream = _open_session(self.host, settings, held, command)
        except HostError:
            if held.asked:
                raise
            # The connection takes no further session. A login that needs no
            # person can be repeated, so try another connection.
            return None
        if stream is None:
            held_connections.forget_record(held)
        return stream


def _start_master(host: Host, settings: Settings, asker: Asker | None) -> HeldConnection:
    """Start a ControlMaster that outlives this process, and write its record."""
    key = held_connections.key_of(settings)
    path = held_connections.socket_path(key)
    if _pid(path) is None:
        # Remove only the socket of a dead master. A live one belongs to another login under way, which this one joins.
        path.unlink(missing_ok=True)
    try:
        asked = _authenticate(host, settings, path, asker)
        pid = _pid(path)
        if pid is None:
            raise ssh_errors.unreachable("ended", host, settings, [], how="the connection ended right after the login")
        place = f"{settings.user}@{settings.place}"
        record = HeldConnection(key, host.name, place, pid, time.time(), host.login_ttl_s, asked, str(path))
        held_connections.write_record(record)
    except BaseException:
        # No program would find a master without a record, so it must not stay.
        if held_connections.find_record(key) is None:
            _ask(path, "exit")
        raise
    return record


def _authenticate(host: Host, settings: Settings, path: Path, asker: Asker | None) -> bool:
    """Log in, and leave the ssh in the background; return whether the person was asked."""
    mux = ["ControlMaster=yes", f'ControlPath="{path}"', f"ControlPersist={max(1, round(host.login_ttl_s))}"]
    words = openssh.line(settings, mux, "true", asks=asker is not None)
    with contextlib.ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clusterfn-"))) / "log"
        asking = stack.enter_context(AskPass(asker, host.name)) if asker else None
        # The ssh that stays in the background must not keep a pipe to
        # this process open, so it writes its messages to a file.
        ssh = [words[0], "-E", str(log), *words[1:]]
        code = _run(ssh, asking, openssh.patience_s(settings))
        log_text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if not path.is_socket():
            error = ssh_errors.error_of(host, settings, log_text, code, asked=asker is not None)
            if asker is None and "clusterfn login" in (error.hint or ""):
                # The hint advises `clusterfn login`, which is what the user has just run.
                error.hint = f"this program has no terminal: type clusterfn login {host.name} in one"
            raise error
        return asking is not None and asking.count > 0


def _run(words: list[str], asking: AskPass | None, patience_s: float) -> int:
    """Wait until the ssh in the foreground has ended; the one that holds the connection is another process."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(asking.env if asking else openssh.ASK_NOBODY)},
        cwd="/",
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + patience_s
        while process.poll() is None and time.monotonic() < deadline + (asking.spent_s if asking else 0.0):
            if asking is not None:
                asking.serve(_LOOK_S)
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
        return -1 if process.poll() is None else process.returncode
    finally:
        process.kill()
        process.wait()


def _open_session(host: Host, settings: Settings, master: HeldConnection, command: str) -> OpensshStream | None:
    """Open a stream through the master; return None if the master is gone, and make no other connection.

    Raises:
        HostError: The host gives no further session on this connection.
    """
    if _pid(Path(master.address)) is None:
        return None
    # Without its master, ssh would connect and log in by itself. This ProxyCommand prevents that.
    mux = ["ControlMaster=no", f'ControlPath="{master.address}"', "ProxyJump=none", "ProxyCommand=false"]
    stream = OpensshStream(openssh.line(settings, mux, command))
    try:
        return openssh.started(host, settings, stream)
    except HostError as error:
        refused = [line for line in stream.before().splitlines() if _REFUSED.fullmatch(line)]
        if refused:
            raise ssh_errors.unreachable("no more sessions", host, settings, refused) from error
        return None


def _pid(path: Path) -> int | None:
    match = _PID.search(_ask(path, "check"))
    return int(match[1]) if match else None


def _ask(path: Path, what: str) -> str:
    """Ask the master at a socket; return "" if it fails, or does not answer in time."""
    words = ["ssh", "-F", "none", "-S", str(path), "-O", what, "--", "held"]
    try:
        ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return (ran.stdout + ran.stderr).decode(errors="replace") if ran.returncode == 0 else ""
