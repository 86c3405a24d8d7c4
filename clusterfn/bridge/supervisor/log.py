"""Lines for scheduler.log and for a client. Writing them may fail, as on a full disk, and that must not matter."""

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def say(message: str) -> None:
    """A line for people."""
    _write(2, "clusterfn: %s %s" % (time.strftime("%H:%M:%S"), message))


def state(attempt: "Optional[int]", kind: "Optional[str]", won: bool) -> None:
    """What now stands, for the client that asked, and for scheduler.log."""
    _write(1, json.dumps({"attempt": attempt, "kind": kind, "won": won}))


def full(error: OSError, folder: str) -> None:
    """That the disk takes nothing more, for people and, in the agent's words, for the client that asked."""
    say("nothing can be published: %s" % error)
    path, why = str(error.filename or folder), os.strerror(error.errno or 0)
    told = {"kind": "full", "message": why, "errno": error.errno, "path": path, "free": _free_bytes(folder)}
    _write(1, json.dumps({"attempt": None, "kind": None, "won": False, "full": told}))


def _free_bytes(folder: str) -> "Optional[int]":
    try:
        disk = os.statvfs(folder)
    except OSError:  # it is gone, or cannot be looked at
        return None
    return disk.f_bavail * disk.f_frsize


def _write(fd: int, line: str) -> None:
    try:
        os.write(fd, (line + "\n").encode("utf-8", "backslashreplace"))
    except OSError:  # full, or closed
        return
