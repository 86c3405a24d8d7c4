"""Which process this is to others that share its file system, and whether one of them still lives.

A builder keeps one beat, `builds/.beats/<token>`: who it is, and a count that goes up. Whoever waits for it counts on
its own clock since the count last changed. No flock: NFS and Lustre may not have it.
"""

import json
import os
import secrets
import socket
import threading
import time

from ..layout import BUILDS
from ..supervisor.job import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_BEAT_S = 2.0
_SILENT_S = 60.0  # from another machine
_REBOOTED_S = 6.0  # from this one before it booted; or from another of the same name, which then still beats
_LEFT_S = 600.0  # by the file server's clock, for those who do not wait and look again
_NEVER = float("inf")


def beats(root: str) -> str:
    """The folder of all builders' beats."""
    return os.path.join(root, BUILDS, ".beats")


def identity() -> "dict[str, Any]":
    """This process, as another can check it; the same pid in another namespace is another process."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": _boot(), "pids": _namespace(), "pid": pid, "start": start_time(pid)}


class Holder:
    """This process as a holder of locks.

    Attributes:
        token: Its name in locks and in what it writes aside.
    """

    def __init__(self, root: str) -> None:
        self.token = secrets.token_hex(4)
        self.root = root
        self._path = os.path.join(beats(root), self.token)
        self._over = threading.Event()

    def __enter__(self) -> "Holder":
        os.makedirs(beats(self.root), exist_ok=True)
        with open(self._path + ".new", "w") as file:
            file.write("%012d\n%s\n" % (0, json.dumps(identity())))
        os.rename(self._path + ".new", self._path)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        _remove(self._path)

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(_BEAT_S):
            count += 1
            try:
                with open(self._path, "r+") as file:
                    file.write("%012d" % count)
            except OSError:  # the disk is full or the server away: the others wait a minute before they conclude
                continue


class Other:
    """Another holder, looked at again and again.

    Args:
        root: The root of all.
        token: Its token.
    """

    def __init__(self, root: str, token: str) -> None:
        self.token = token
        self._path = os.path.join(beats(root), token)
        self._count = ""
        self._since = time.monotonic()

    def is_dead(self) -> bool:
        """Whether nobody can be waited for any more."""
        found = _read(self._path)
        if found is None:
            return True
        count, who = found
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        return time.monotonic() - self._since >= _patience(who)

    def who(self) -> str:
        """Where it runs, for people."""
        found = _read(self._path)
        return "pid %s on %s" % (found[1].get("pid"), found[1].get("host")) if found else "somebody who is gone"


def is_long_dead(root: str, token: str, mine: "Holder") -> bool:
    """Whether that holder is surely dead, from one look: for what it left behind."""
    found = _read(os.path.join(beats(root), token))
    if found is None:
        return True
    patience = _patience(found[1])
    if patience in (0.0, _NEVER):
        return not patience
    try:
        silent_s = os.stat(mine._path).st_mtime - os.stat(os.path.join(beats(root), token)).st_mtime
    except OSError:
        return False
    return silent_s > _LEFT_S


def _patience(who: "dict[str, Any]") -> float:
    """For how many seconds of silence this holder is believed to live."""
    me = identity()
    if who.get("host") != me["host"]:
        return _SILENT_S
    if who.get("boot") != me["boot"]:
        return _REBOOTED_S
    if who.get("pids") != me["pids"]:
        return _SILENT_S
    return _NEVER if start_time(int(who["pid"])) == who["start"] else 0.0


def _read(path: str) -> "Optional[tuple[str, dict[str, Any]]]":
    """The count and the identity, or None if there is no beat."""
    try:
        with open(path) as file:
            count, _, who = file.read().partition("\n")
    except FileNotFoundError:
        return None
    try:
        return count, dict(json.loads(who))
    except ValueError:  # a full disk cut it off
        return count, {}


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
