"""Say which paths exist, or which files there are below a folder."""

import contextlib
import json
import os
import stat

from .files import glob_pattern, is_there, record_use
from .handler import RequestHandler, expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional

    from .frames import Frame


class PathsHandler(RequestHandler):
    def start(self) -> None:
        have = []
        for path in map(expand, self.header["paths"]):
            # The date is set before the check: a path that exists afterwards is not removed for a while.
            record_use(path, self.agent.root)
            have.append(is_there(path))
        self.end(have=have)


class PatternHandler(RequestHandler):
    """List the regular files below a folder, and links to such, a few hundred entries per turn of the loop."""

    ENTRIES_A_TURN = 500
    # An answer is a single header, and the client accepts one of up to twice this size.
    MOST_BYTES = 4 * 1024 * 1024

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.match = glob_pattern(self.header.get("glob") or "**").match
        self.limit = self.header.get("limit") or 10000
        self.found: "List[Any]" = []
        self.room = self.MOST_BYTES
        os.listdir(self.path)
        self.walk = self.entries(self.path, "")
        self.agent.out.offer(self)

    def entries(self, folder: str, prefix: str) -> "Iterator[Optional[Any]]":
        for name in sorted(os.listdir(folder)):
            place = os.path.join(folder, name)
            try:
                status = os.lstat(place)
            except FileNotFoundError:
                continue
            # Only links whose name matches are followed, because any other may lead to a file server that hangs.
            if stat.S_ISLNK(status.st_mode) and self.match(prefix + name):
                with contextlib.suppress(OSError):
                    # A link that leads nowhere keeps its own status, and so counts as no regular file.
                    status = os.stat(place)
            elif stat.S_ISDIR(status.st_mode):
                yield None
                yield from self.entries(place, prefix + name + "/")
            if stat.S_ISREG(status.st_mode) and self.match(prefix + name):
                yield [prefix + name, status.st_size, status.st_mtime, status.st_mode]
            else:
                yield None

    def frame(self) -> "Optional[Frame]":
        for _ in range(self.ENTRIES_A_TURN):
            try:
                entry = next(self.walk)
            except StopIteration:
                self.end(files=self.found, truncated=False)
                return None
            if entry is None:
                continue
            self.room -= len(json.dumps(entry[0]))
            if len(self.found) == self.limit or self.room < 0:
                self.end(files=self.found, truncated=True)
                return None
            self.found.append(entry)
        return b""
