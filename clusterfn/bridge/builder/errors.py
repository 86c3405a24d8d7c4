"""Errors of the builder: why a build failed, as it is written into outcome.json."""

import errno
import os

from .. import layout
from ..supervisor.text import portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
ROOM = "make room there (clusterfn env gc), or point env_root: to another file system"


class BuildFailed(Exception):
    """The environment cannot be built."""

    def __init__(
        self, message: str, *, stage: str, evidence: "Sequence[str]" = (), hint: str = "", need: "Sequence[str]" = ()
    ) -> None:
        super().__init__(message)
        self.stage = stage  # docs/reference/builder.md lists them
        self.evidence = list(evidence)  # lines of other programs, unchanged
        self.hint = hint
        self.need = list(need)  # SHA-256 of missing archives that the client may send

    def document(self) -> "dict[str, Any]":
        """Return the content of outcome.json."""
        content = {"ok": False, "message": str(self), "evidence": self.evidence, "hint": self.hint, "stage": self.stage}
        return dict(portable(dict(content, need=self.need) if self.need else content))


def from_os_error(error: OSError, root: str) -> BuildFailed:
    """Describe what the file system refused, with its numbers."""
    where = "%s: %s" % (os.strerror(error.errno) if error.errno else error, error.filename or root)
    if error.errno in layout.DISK_ERRORS:
        # These imports are late for the same reason.
        from ..agent.files import disk_left
        from ..supervisor.text import format_size

        left = disk_left(os.path.join(root, "file"))
        files = "" if left["files"] is None else ", %d files" % left["files"]
        free = [] if left["free"] is None else ["free under %s: %s%s" % (root, format_size(left["free"]), files)]
        return BuildFailed("the disk is full: %s" % where, stage="disk", evidence=free, hint=ROOM)
    if error.errno in _DENIED:
        hint = "point env_root: to a folder that you may write to"
        return BuildFailed("nothing may be written there: %s" % where, stage="disk", hint=hint)
    return BuildFailed("the file system refused: %s" % where, stage="disk", hint="look at the file system of %s" % root)
