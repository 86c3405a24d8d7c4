"""Which connections are held for this user: one record for each, a small file that only its owner can read.

A record is a claim, not a fact: who wants to use the connection finds out whether it is there, and forgets the record
if it is not. Holds and opens nothing itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterfn.hosts.transports import runtime
from clusterfn.hosts.transports.sshconfig import Settings

MASTER, HOLDER = "master", "holder"
_RECORD = ".json"


@dataclass(frozen=True)
class Held:
    """One held connection.

    Attributes:
        key: Names it: kind and way to the host, as a hash.
        kind: MASTER, a ControlMaster of the system's ssh; or HOLDER, a process of ours with paramiko.
        host: The host's name in clusterfn.yml at the login.
        place: user@host:port.
        pid: Of the process that holds it.
        since: time.time() of the login.
        ttl_s: How long it is kept without being used.
        asked: Whether the login needed a person.
        address: Where a holder is spoken to; a master's socket.
        secret: For a pipe of Windows, which others can open too; else "".
    """

    key: str
    kind: str
    host: str
    place: str
    pid: int
    since: float
    ttl_s: float
    asked: bool
    address: str
    secret: str = ""


def key_of(settings: Settings, kind: str) -> str:
    """The same for all names and files that lead to one account by one way."""
    way = [kind, settings.user, settings.hostname, settings.port, settings.key_name]
    text = json.dumps([*way, settings.proxy_jump, settings.proxy_command])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def socket_path(key: str) -> Path:
    """Where the socket of a held connection lies."""
    return runtime.folder() / f"{key}.s"


def remember(held: Held) -> None:
    """Write its record: from now on others find it.

    Raises:
        ConfigError: It cannot be written; then nobody finds it, and nothing is left of it.
    """
    path = _path(held.key)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(held), file)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise runtime.unwritable(error) from error


def forget(held: Held) -> None:
    """Remove its record and its socket, unless another login has taken the place since."""
    now = find(held.key)
    if now is not None and now.pid == held.pid:
        for path in (_path(held.key), *([] if sys.platform == "win32" else [Path(held.address)])):
            path.unlink(missing_ok=True)


def find(key: str) -> Held | None:
    """The record of that key, if there is one."""
    try:
        return Held(**json.loads(_path(key).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def every() -> Iterator[Held]:
    """All records, those of dead connections too."""
    for path in sorted(runtime.folder().glob(f"*{_RECORD}")):
        found = find(path.name.removesuffix(_RECORD))
        if found is not None:
            yield found


def any_there() -> bool:
    """Whether anything is held at all, which costs next to nothing to ask."""
    return runtime.is_there() and next(every(), None) is not None


def is_running(pid: int) -> bool:
    """Whether there is such a process of this user."""
    if sys.platform == "win32":
        return True  # os.kill would end it: its pipe tells
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return not _has_ended(pid)


def listens(held: Held) -> bool:
    """Whether a process holds its socket open, one that was stopped too. For a master this counts as use."""
    if sys.platform == "win32":
        return True
    with socket.socket(socket.AF_UNIX) as line:
        line.setblocking(False)
        try:
            line.connect(held.address)
        except BlockingIOError:  # others wait already
            return True
        except OSError:
            return False
    return True


def _has_ended(pid: int) -> bool:
    """Whether only its parent has not heard of its end: in a container, perhaps nobody ever will (Linux)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"


def _path(key: str) -> Path:
    return runtime.folder() / f"{key}{_RECORD}"
