"""Hold a connection by a ControlMaster of our own: the system's ssh in the background, with its socket in our folder.

It ends itself once it was unused for the host's `login_ttl` (ControlPersist), or when the connection dies. Not on
Windows, whose ssh has no ControlMaster.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from clusterfn.config.spec import Host
from clusterfn.errors import HostError
from clusterfn.hosts.transports import held_connections, openssh, ssh_errors
from clusterfn.hosts.transports.askpass import AskPass
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.hosts.transports.openssh import OpensshStream
from clusterfn.hosts.transports.prompts import Asker
from clusterfn.hosts.transports.ssh_config import Settings

_LOOK_S = 0.1
_CHECK_S = 5.0
_PID = re.compile(r"pid=(\d+)")
_REFUSED = re.compile(r"mux_client_request_session: session request failed: .*")


def log_in(host: Host, settings: Settings, asker: Asker | None) -> HeldConnection:
    """Start a ControlMaster that outlives this process, and write its record.

    Raises:
        HostError: As `Transport.open`.
    """
    key = held_connections.key_of(settings)
    path = held_connections.socket_path(key)
    if _pid(path) is None:  # a live one belongs to another login that is under way: this one joins it
        path.unlink(missing_ok=True)
    try:
        asked = _authenticated(host, settings, path, asker)
        pid = _pid(path)
        if pid is None:
            how = "the connection ended right after the login"
            raise ssh_errors.unreachable("ended", host, settings, [], how=how)
        place = f"{settings.user}@{settings.place}"
        made = HeldConnection(key, host.name, place, pid, time.time(), host.login_ttl_s, asked, str(path))
        held_connections.write_record(made)
    except BaseException:  # a master without a record must not stay: no program would find it
        if held_connections.find_record(key) is None:
            _ask(path, "exit")
        raise
    return made


def _authenticated(host: Host, settings: Settings, path: Path, asker: Asker | None) -> bool:
    """Log in, and leave the ssh in the background; return whether the person was asked."""
    mux = ["ControlMaster=yes", f"ControlPath={path}", f"ControlPersist={max(1, round(host.login_ttl_s))}"]
    words = openssh.line(settings, mux, "true", asks=asker is not None)
    with contextlib.ExitStack() as stack:
        folder = held_connections.scratch_folder("in-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        log = folder / "log"
        asking = stack.enter_context(AskPass(asker, host.name)) if asker else None
        ssh = [words[0], "-E", str(log), *words[1:]]
        code = _run(ssh, asking, openssh.patience_s(settings))
        said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if not path.is_socket():
            raise ssh_errors.error_of(host, settings, said, code, asked=asker is not None)
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


def open_session(host: Host, settings: Settings, master: HeldConnection, command: str) -> OpensshStream | None:
    """Open a stream through the master; return None if the master is gone, and make no other connection.

    Raises:
        HostError: The host gives no further session on this connection.
    """
    if _pid(Path(master.address)) is None:
        return None
    # without its master an ssh would connect and log in by itself: this ProxyCommand prevents that
    mux = ["ControlMaster=no", f"ControlPath={master.address}", "ProxyJump=none", "ProxyCommand=false"]
    stream = OpensshStream(openssh.line(settings, mux, command))
    try:
        return openssh.started(host, settings, stream)
    except HostError as error:
        refused = [line for line in stream.before().splitlines() if _REFUSED.fullmatch(line)]
        if refused:
            raise ssh_errors.unreachable("no more sessions", host, settings, refused) from error
        return None


def is_alive(master: HeldConnection) -> bool:
    """Whether its process and its socket exist. Does not count as use, as asking it would."""
    return Path(master.address).is_socket() and held_connections.is_running(master.pid)


def answers(master: HeldConnection) -> bool:
    """Whether it can be used now; a stopped one is alive and does not answer."""
    return _pid(Path(master.address)) is not None


def log_out(master: HeldConnection) -> None:
    """End it, with every session that goes through it."""
    _ask(Path(master.address), "exit")


def _pid(path: Path) -> int | None:
    match = _PID.search(_ask(path, "check"))
    return int(match[1]) if match else None


def _ask(path: Path, what: str) -> str:
    words = ["ssh", "-F", "none", "-S", str(path), "-O", what, "--", "held"]
    try:
        ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHECK_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return (ran.stdout + ran.stderr).decode(errors="replace") if ran.returncode == 0 else ""
