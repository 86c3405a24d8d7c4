"""Records of the connections that are held open for this user, in a folder that only the user can read. Not on Windows.

The folder also holds their sockets. It has a short, fixed name. A socket's path may have 104 bytes, and every program
of the user must find it, whatever its environment variables. A record may outlive its connection: the program that
wants to use it tests that first, and removes the record of a dead one.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clusterfn.bridge.supervisor import publish
from clusterfn.errors import ConfigError
from clusterfn.hosts.transports.ssh_config import Settings

VARIABLE = "CLUSTERFN_RUNTIME"
# Not TMPDIR, which may differ between the programs of one user: all of them must find the same folder.
PLACE = Path("/tmp")
# The longest path of the folder. With the name of a socket and what ssh appends, it has 103 bytes.
_LONGEST = 67


def runtime_folder() -> Path:
    """Return the folder; create it first if it does not exist.

    Raises:
        ConfigError: Another user has made it, others may use it, or it cannot be made.
    """
    path = _runtime_path()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        # Something that is not a folder has this name; `_refuse_shared` says so.
        _refuse_shared(path)
    except OSError as error:
        raise unwritable(error) from error
    _refuse_shared(path)
    return path


def unwritable(error: OSError) -> ConfigError:
    """Return the error for a folder that cannot be made or written to."""
    return ConfigError(
        f"{_runtime_path()}, which holds the sockets and records of logins, cannot be written to: {error.strerror}",
        hint=f"fix that, or set {VARIABLE} to another folder of your own with a short path",
    )


def _runtime_path() -> Path:
    folder = os.environ.get(VARIABLE)
    if folder:
        return Path(folder).absolute()
    if sys.platform == "win32":
        raise AssertionError("no connection can be held on Windows")
    uid = os.getuid()
    usual = PLACE / f"clusterfn-{uid}"
    if _owner(usual) in (None, uid):
        return usual
    # Another user has made that folder, so use one with another name, the same for all programs.
    own = [path for path in PLACE.glob(f"{usual.name}-*") if _owner(path) == uid]
    return min(own) if own else Path(tempfile.mkdtemp(prefix=f"{usual.name}-", dir=PLACE))


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        # No file of this name exists, or its folder cannot be read.
        return None


def _refuse_shared(path: Path) -> None:
    if len(os.fsencode(path)) > _LONGEST:
        raise ConfigError(f"{path} is too long for a folder of sockets", hint=f"set {VARIABLE} to a short path")
    if sys.platform == "win32":
        raise AssertionError("no connection can be held on Windows")
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise ConfigError(
            f"{path} is not private to you, and connections that are logged in need a private folder",
            evidence=[f"owner {info.st_uid}, mode {stat.filemode(info.st_mode)}"],
            hint=f"remove it, or set {VARIABLE} to a folder of your own with a short path",
        )


_RECORD = ".json"


class HeldConnection(NamedTuple):
    """One held connection.

    Attributes:
        key: A hash of the way to the host.
        host: The host's name in clusterfn.yml at the login.
        place: user@host:port.
        pid: The ssh that holds it.
        since: time.time() of the login.
        ttl_s: How long it is kept without being used.
        asked: Whether the login needed a person.
        address: The path of its socket.
    """

    key: str
    host: str
    place: str
    pid: int
    since: float
    ttl_s: float
    asked: bool
    address: str


def key_of(settings: Settings) -> str:
    """Return the same key for all names and files that lead to one account by one way."""
    way = [settings.user, settings.hostname, settings.port, settings.key_name]
    text = json.dumps([*way, settings.proxy_jump, settings.proxy_command])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def socket_path(key: str) -> Path:
    return runtime_folder() / f"{key}.s"


def write_record(held: HeldConnection) -> None:
    """Write its record, by which other programs find it; raise ConfigError, and leave nothing, if that fails."""
    path = _record_path(held.key)
    try:
        publish.replace(str(path), json.dumps(held._asdict()).encode(), sync=False)
    except OSError as error:
        raise unwritable(error) from error


def forget_record(held: HeldConnection) -> None:
    """Remove its record and its socket, unless another login has taken the place since."""
    now = find_record(held.key)
    if now is not None and now.pid == held.pid:
        _record_path(held.key).unlink(missing_ok=True)
        Path(held.address).unlink(missing_ok=True)


def find_record(key: str) -> HeldConnection | None:
    """Return the record with that key; None if there is none, or it is damaged."""
    try:
        return HeldConnection(**json.loads(_record_path(key).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def all_records() -> Iterator[HeldConnection]:
    """Yield all records, those of dead connections too."""
    for path in sorted(runtime_folder().glob(f"*{_RECORD}")):
        record = find_record(path.name.removesuffix(_RECORD))
        if record is not None:
            yield record


def has_records() -> bool:
    """Whether anything is held at all; cheap. Another user's folder counts as none."""
    try:
        _refuse_shared(_runtime_path())
    except (OSError, ConfigError):
        return False
    return next(all_records(), None) is not None


def is_running(pid: int) -> bool:
    """Whether this user has such a process."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    # A zombie counts as ended: in a container, its parent may never reap it.
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] != "Z"


def _record_path(key: str) -> Path:
    return runtime_folder() / f"{key}{_RECORD}"
