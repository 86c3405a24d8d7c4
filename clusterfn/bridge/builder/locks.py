"""Locks between builders that share a file system, and whether the process that holds one is alive.

A lock is a folder with numbered files, of which the highest names the holder; an empty name holds nothing. A number is
never used again, so a lock that was taken from a dead holder is not taken from its successor by mistake. This works
where link(2) works, or rename of folders; there is no flock, as NFS and Lustre may not have it.

A builder keeps one heartbeat, `builds/.beats/<token>`: its identity, and a count that goes up. A process that waits for
it measures on its own clock how long the count has not changed. A lock is taken from a holder that a signal has stopped
as from a dead one: if it continues later, it finds that out and waits in turn.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import threading
import time
from typing import Any, Callable, Iterator, NamedTuple, Optional

from ..agent.trusted import user_name
from ..layout import BEATS, BUILDS
from ..supervisor import publish
from ..supervisor.process_tree import STOPPED, boot_id, is_hidden, start_time, state_of

_LOOK_S = 0.1
_FREE = "free"
_BEAT_S = 2.0
# The processes of another machine cannot be seen, so it must be silent for a minute.
_SILENT_S = 60.0
# This machine may have booted since. Or another machine has the same name, and then still beats.
_REBOOTED_S = 6.0
# A job that is suspended must not block others with its lock.
_STOPPED_S = 5.0
_FOR_EVER_S = float("inf")
# At the first look, only the clock of the file server tells how old a heartbeat is.
_LEFT_S = 600.0


class FolderLock:
    """A lock, kept in a folder. One that `is_kept` stays when the lock is released, and never has a number again."""

    def __init__(self, folder: str, holder: "LockHolder", *, is_kept: bool = True) -> None:
        self._other: "Optional[OtherHolder]" = None  # its holder at the last look
        self._folder = folder
        self._holder = holder
        self._is_kept = is_kept
        self._number = 0

    @contextlib.contextmanager
    def held(self, meanwhile: "Callable[[Optional[OtherHolder]], None]") -> "Iterator[None]":
        """Hold the lock; as long as it is taken, call `meanwhile` with its holder again and again."""
        while not self.take():
            meanwhile(self._other)
            time.sleep(_LOOK_S)
        try:
            yield
        finally:
            self.release()

    def take(self) -> bool:
        """Take the lock if it is free or its holder is dead."""
        os.makedirs(self._folder, exist_ok=True)
        number, token = current_holder(self._folder)
        if token:
            if self._other is None or self._other.token != token:
                self._other = OtherHolder(token, self._holder)
            if not self._other.is_dead(_STOPPED_S):
                return False
        try:
            # Of several builders that try the same number, one succeeds.
            if not publish.publish(self._folder, str(number + 1), self._holder.token.encode(), mode=0o666):
                return False
        except FileNotFoundError:
            # Its holder has removed the folder meanwhile.
            return False
        # The lock counts only if this number is still the highest, and has the token of this process.
        self._number = number + 1
        if not self.is_mine():
            try_unlink(os.path.join(self._folder, str(self._number)))
            return False
        for old in _numbers(self._folder):
            if old < self._number:
                try_unlink(os.path.join(self._folder, str(old)))
        return True

    def is_mine(self) -> bool:
        """Return whether this process still holds the lock: another may have taken it for dead."""
        return current_holder(self._folder) == (self._number, self._holder.token)

    def release(self) -> None:
        """Release the lock, if this process holds it."""
        if self.is_mine() and self._is_kept:
            publish.replace(os.path.join(self._folder, str(self._number)), _FREE.encode(), sync=False, mode=0o666)
        elif self.is_mine():
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


def is_held(folder: str, holder: "LockHolder") -> bool:
    """Return whether another process that lives holds the lock in a folder, at a single look."""
    token = current_holder(folder)[1]
    return token not in ("", holder.token) and not OtherHolder(token, holder).is_dead()


def _numbers(folder: str) -> "list[int]":
    with contextlib.suppress(FileNotFoundError):
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    return []


def try_unlink(path: str) -> None:
    """Remove a file, if it is there and may be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def beats_folder(root: str) -> str:
    """Return the folder of all builders' heartbeats."""
    return os.path.join(root, BUILDS, BEATS)


def identify_process() -> "dict[str, Any]":
    """Describe this process so that others can check it; the same pid in another namespace is another process."""
    pid = os.getpid()
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot_id(), "pids": namespace, "pid": pid, "start": start_time(pid)}


class LockHolder:
    """This process as a holder of locks; sends heartbeats while it is entered."""

    def __init__(self, root: str) -> None:
        self.token = secrets.token_hex(4)  # its name in locks and in what it writes aside
        self.root = root
        self._path = os.path.join(beats_folder(root), self.token)
        self._over = threading.Event()

    def __enter__(self) -> "LockHolder":
        self._begin(0)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try_unlink(self._path)

    def _begin(self, count: int) -> None:
        os.makedirs(beats_folder(self.root), exist_ok=True)
        beat = "%012d\n%s\n" % (count, json.dumps(identify_process()))
        publish.replace(self._path, beat.encode(), sync=False, mode=0o666)

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(_BEAT_S):
            count += 1
            # If the disk is full or the server away, others wait a minute before they take this process for dead.
            with contextlib.suppress(OSError):
                try:
                    with open(self._path, "r+") as file:
                        file.write("%012d" % count)
                except FileNotFoundError:
                    # Without a heartbeat this process counts as dead, and others take its lock.
                    if os.path.isdir(self.root):
                        self._begin(count)


class _Beat(NamedTuple):
    beats: str
    date: float  # by the file server's clock
    uid: int
    process: "dict[str, Any]"  # as `identify_process` describes it


class OtherHolder:
    """Another holder of a lock. Who looks again and again learns that it is dead earlier than who looks once."""

    def __init__(self, token: str, mine: "LockHolder") -> None:
        self.token = token
        self._root = mine.root
        self._since = time.monotonic()
        beat, own = _read_beat(mine.root, token), _read_beat(mine.root, mine.token)
        self._count = beat.beats if beat else ""
        if beat and own and own.date - beat.date > _LEFT_S:
            self._since -= own.date - beat.date

    def is_dead(self, stopped_s: float = _FOR_EVER_S) -> bool:
        """Return whether the holder is surely dead.

        Args:
            stopped_s: For how long one that a signal has stopped counts as alive: its lock may be taken, and it waits
                in turn when it continues; what it is making must not be removed.
        """
        beat = _read_beat(self._root, self.token)
        if beat is None:
            return True
        if beat.beats != self._count:
            self._count, self._since = beat.beats, time.monotonic()
        return time.monotonic() - self._since >= _patience_s(beat.process, stopped_s)

    def who(self) -> str:
        """Name the pid, the host and the user, for messages; and say whether it is stopped."""
        beat = _read_beat(self._root, self.token)
        if beat is None or not beat.process:
            return "a process that is gone"
        stopped = ", stopped by a signal" if _patience_s(beat.process, _STOPPED_S) == _STOPPED_S else ""
        return "pid %s on %s (%s%s)" % (beat.process["pid"], beat.process["host"], user_name(beat.uid), stopped)


def _patience_s(process: "dict[str, Any]", stopped_s: float) -> float:
    """Return for how long its heartbeat may be silent: not at all if it is gone, for ever if it runs."""
    me = identify_process()
    if process.get("host") != me["host"]:
        return _SILENT_S
    if process.get("boot") != me["boot"]:
        return _REBOOTED_S
    # With hidepid=2 the processes of another user cannot be seen.
    if process.get("pids") != me["pids"] or is_hidden(int(process["pid"])):
        return _SILENT_S
    if start_time(int(process["pid"])) != process["start"]:
        return 0.0
    return stopped_s if state_of(int(process["pid"])) == STOPPED else _FOR_EVER_S


def _read_beat(root: str, token: str) -> "Optional[_Beat]":
    process: "dict[str, Any]" = {}
    try:
        with open(os.path.join(beats_folder(root), token)) as file:
            count, _, line = file.read().partition("\n")
            found = os.fstat(file.fileno())
    except (FileNotFoundError, IsADirectoryError):
        # Another user may have planted a name that ends with "..", for example.
        return None
    # A full disk may have cut the line off.
    with contextlib.suppress(ValueError):
        process = dict(json.loads(line))
    return _Beat(count, found.st_mtime, found.st_uid, process)
