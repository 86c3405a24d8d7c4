"""Check that what a folder needs beside it is there when it appears: the code, modules and buffers of a job."""

import json
import os
import time

from .files import MANIFEST, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

    from .frames import Header

# The checks of one tree take at most this share of the time.
CHECK_SHARE = 0.1


class MissingPaths:
    """What one agent knows of that."""

    def __init__(self) -> None:
        self.whole_until: "Dict[str, float]" = {}

    def lacking(self, header: "Header") -> "List[str]":
        """Return what of its `needs` is gone; a tree that is damaged is removed first."""
        whole = header.get("whole") or ()
        # The client sends absolute paths here, so they need no `expand`.
        needs = list(header.get("needs") or ())
        return [path for path in needs if not os.path.lexists(path) or (path in whole and self.is_damaged(path))]

    def is_damaged(self, path: str) -> bool:
        began = time.monotonic()
        if began < self.whole_until.get(path, 0.0):
            return False
        if is_whole(path):
            now = time.monotonic()
            self.whole_until[path] = now + (now - began) / CHECK_SHARE
            return False
        remove_damaged(path)
        return True


def remove_damaged(tree: str) -> None:
    """Remove a tree whose name a whole one gets next."""
    # The name is that of a part, because agents remove parts that were left behind.
    aside = "%s.part-%d-%d" % (tree, os.getpid(), int(time.monotonic() * 1e6))
    os.rename(tree, aside)
    remove_tree(aside)


def is_whole(tree: str) -> bool:
    """Whether each file of a tree that has a list of them is there, with its size."""
    try:
        with open(os.path.join(tree, MANIFEST), "rb") as file:
            files = json.loads(file.read().decode("utf-8"))
        return all(os.stat(os.path.join(tree, name)).st_size == size for name, size in files.items())
    except (OSError, ValueError):
        return False
