"""Answers that say no, in the words of the wire."""

import errno
import os

from .files import free_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = {
    errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EACCES: "denied", errno.EPERM: "denied", errno.EROFS: "denied",
    errno.ENOENT: "missing", errno.ENOTDIR: "missing",
}  # fmt: skip


class Failure(Exception):
    """An answer that says no: expected, and therefore data."""

    def __init__(self, kind: str, message: str, path: str = "", number: int = 0, **more: "Any") -> None:
        Exception.__init__(self, message)
        self.data = dict(more, kind=kind, message=message)
        if path:
            self.data["path"] = path
        if number:
            self.data["errno"] = number


def failure_of(error: OSError, path: str, **more: "Any") -> Failure:
    """What the operating system refused, in the words of the wire."""
    number = error.errno or 0
    kind = KINDS.get(number, "io")
    if kind == "full":
        more["free"] = free_bytes(path)
    return Failure(kind, os.strerror(number) if number else str(error), path, number, **more)
