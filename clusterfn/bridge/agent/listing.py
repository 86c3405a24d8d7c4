"""Which files there are."""

import os
import stat

from .paths import expand, glob_pattern
from .request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional


class Listing(Request):
    """Files below a folder, a few hundred entries a turn."""

    ENTRIES_A_TURN = 500

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.match = glob_pattern(self.header.get("glob") or "**").match
        self.limit = self.header.get("limit") or 10000
        self.found: "List[Any]" = []
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
            if stat.S_ISDIR(status.st_mode):
                yield None
                yield from self.entries(place, prefix + name + "/")
            elif self.match(prefix + name):
                yield [prefix + name, status.st_size, status.st_mtime, status.st_mode]
            else:
                yield None

    def frame(self) -> "Optional[bytes]":
        for _ in range(self.ENTRIES_A_TURN):
            try:
                entry = next(self.walk)
            except StopIteration:
                self.end(files=self.found, truncated=False)
                return None
            if entry is not None and len(self.found) == self.limit:
                self.end(files=self.found, truncated=True)
                return None
            if entry is not None:
                self.found.append(entry)
        return b""
