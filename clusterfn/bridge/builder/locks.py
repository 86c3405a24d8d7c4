"""Locks between builders that share a file system, and whether the process that holds one is alive.

A lock is a folder with numbered files, of which the highest names the holder; an empty name holds nothing. A number is
never used again, so a lock that was taken from a dead holder is not taken from its successor by mistake. This works
where link(2) works, or rename of folders; there is no flock, as NFS and Lustre may not have it.

A builder keeps one heartbeat, `builds/.beats/<token>`: its identity, and a count that goes up. A process that waits for
it measures on its own clock how long the count has not changed.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import threading
import time

from ..layout import BUILDS
from ..supervisor import publish
from ..supervisor.process_tree import boot_id, is_hidden, start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

_LOOK_S = 0.1
_FREE = "free"
_BEAT_S = 2.0
_SILENT_S = 60.0  # from another machine
_REBOOTED_S = 6.0  # from this one before it booted; or from another of the same name, which then still beats
_LEFT_S = 600.0  # by the file server's clock, for those who do not wait and look again
_NEVER = float("inf")


class FolderLock:
    """A lock, kept in a folder.

    Attributes:
        held_by: The other holder at the last look, if there was one.
    """

    def __init__(self, folder: str, holder: "LockHolder") -> None:
        self.held_by: "Optional[OtherHolder]" = None
        self._folder = folder
        self._holder = holder
        self._number = 0

    def take(self) -> bool:
        """Take the lock if it is free or its holder is dead."""
        os.makedirs(self._folder, exist_ok=True)
        number, token = current_holder(self._folder)
        if token:
            if self.held_by is None or self.held_by.token != token:
                self.held_by = OtherHolder(self._holder.root, token)
            if not self.held_by.is_dead():
                return False
        try:
            if not publish.publish(self._folder, str(number + 1), self._holder.token.encode(), mode=0o666):
                return False
        except FileNotFoundError:  # `forget` was called between
            return False
        self._number = number + 1
        if not self.is_mine():
            try_unlink(os.path.join(self._folder, str(self._number)))
            return False
        for old in _numbers(self._folder):
            if old < self._number:
                try_unlink(os.path.join(self._folder, str(old)))
        return True

    def wait(self, meanwhile: "Callable[[Optional[OtherHolder]], None]") -> None:
        """Take the lock; call `meanwhile` with its holder each time it is still taken."""
        while not self.take():
            meanwhile(self.held_by)
            time.sleep(_LOOK_S)

    def is_mine(self) -> bool:
        """Return whether this process still holds the lock: another may have taken it for dead."""
        return current_holder(self._folder) == (self._number, self._holder.token)

    def release(self) -> None:
        """Release the lock."""
        if not self._number or not self.is_mine():
            return
        path = os.path.join(self._folder, str(self._number))
        with open(path + ".free", "w") as file:
            file.write(_FREE)
        os.rename(path + ".free", path)

    def forget(self) -> None:
        """Remove the lock itself, once it is of no use any more."""
        shutil.rmtree(self._folder, ignore_errors=True)


def current_holder(folder: str) -> "tuple[int, str]":
    """Return the highest number and its token; the token is empty if the lock is free."""
    while True:
        number = max(_numbers(folder), default=0)
        if not number:
            return 0, ""
        data = publish.read(folder, str(number))
        if data is not None:
            token = data.decode("ascii", "replace")
            return number, "" if token == _FREE else token


def _numbers(folder: str) -> "list[int]":
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [int(name) for name in names if name.isdecimal()]


def try_unlink(path: str) -> None:
    """Remove a file, if it is there and may be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def beats_folder(root: str) -> str:
    """Return the folder of all builders' heartbeats."""
    return os.path.join(root, BUILDS, ".beats")


def identify_process() -> "dict[str, Any]":
    """Describe this process so that others can check it; the same pid in another namespace is another process."""
    pid, namespace = os.getpid(), ""
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot_id(), "pids": namespace, "pid": pid, "start": start_time(pid)}


class LockHolder:
    """This process as a holder of locks; sends heartbeats while it is entered.

    Attributes:
        token: Its name in locks and in what it writes aside.
    """

    def __init__(self, root: str) -> None:
        self.token = secrets.token_hex(4)
        self.root = root
        self._path = os.path.join(beats_folder(root), self.token)
        self._over = threading.Event()

    def __enter__(self) -> "LockHolder":
        os.makedirs(beats_folder(self.root), exist_ok=True)
        with open(self._path + ".new", "w") as file:
            file.write("%012d\n%s\n" % (0, json.dumps(identify_process())))
        os.rename(self._path + ".new", self._path)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try_unlink(self._path)

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(_BEAT_S):
            count += 1
            try:
                with open(self._path, "r+") as file:
                    file.write("%012d" % count)
            except OSError:  # the disk is full or the server away: others wait a minute before they take us for dead
                continue


class OtherHolder:
    """Another holder of a lock, observed repeatedly."""

    def __init__(self, root: str, token: str) -> None:
        self.token = token
        self._path = os.path.join(beats_folder(root), token)
        self._count = ""
        self._since = time.monotonic()

    def is_dead(self) -> bool:
        """Return whether the holder is dead, so that waiting is pointless."""
        found = _read(self._path)
        if found is None:
            return True
        count, who = found
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        return time.monotonic() - self._since >= _patience(who)

    def who(self) -> str:
        """Name the pid and the host, for messages."""
        found = _read(self._path)
        return "pid %s on %s" % (found[1].get("pid"), found[1].get("host")) if found else "a process that is gone"


def is_long_dead(root: str, token: str, mine: "LockHolder") -> bool:
    """Decide from a single look whether a holder is surely dead, so that its leftovers may go."""
    found = _read(os.path.join(beats_folder(root), token))
    if found is None:
        return True
    patience = _patience(found[1])
    if patience in (0.0, _NEVER):
        return not patience
    try:
        silent_s = os.stat(mine._path).st_mtime - os.stat(os.path.join(beats_folder(root), token)).st_mtime
    except OSError:
        return False
    return silent_s > _LEFT_S


def _patience(who: "dict[str, Any]") -> float:
    me = identify_process()
    if who.get("host") != me["host"]:
        return _SILENT_S
    if who.get("boot") != me["boot"]:
        return _REBOOTED_S
    if who.get("pids") != me["pids"]:
        return _SILENT_S
    if is_hidden(int(who["pid"])):  # hidepid=2 hides another user's builder: its heartbeat tells
        return _SILENT_S
    return _NEVER if start_time(int(who["pid"])) == who["start"] else 0.0


def _read(path: str) -> "Optional[tuple[str, dict[str, Any]]]":
    try:
        with open(path) as file:
            count, _, who = file.read().partition("\n")
    except FileNotFoundError:
        return None
    try:
        return count, dict(json.loads(who))
    except ValueError:  # a full disk cut it off
        return count, {}
