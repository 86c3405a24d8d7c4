"""Paths and patterns as the client writes them."""

import contextlib
import os
import re

from .failures import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def expand(path: str) -> str:
    """An absolute path: `$VAR` of this host (an unknown one stays), then `~/`."""
    full = os.path.expanduser(os.path.expandvars(path))
    if "\0" in full or not os.path.isabs(full):
        raise Failure("bad", "not an absolute path on this host", path)
    return os.path.normpath(full)


_STORED = ("blobs", "files", "sources", "shims", "bridge")


def date(path: str, root: str) -> None:
    """Note that a client relies on something that is sent once for many jobs: what nobody relies on is removed."""
    parts = os.path.relpath(path, root).split("/")
    if len(parts) > 1 and parts[0] in _STORED:
        with contextlib.suppress(OSError):  # it is not there, or the file system may not be written to
            os.utime(os.path.join(root, parts[0], parts[1]))


def glob_pattern(glob: str) -> "Any":
    """As pathlib reads it: `*` stays within one name, `**` is any number of folders."""
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[[^]/]+\]|.", glob, re.DOTALL)
    words = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(
        words.get(t) or (t.replace("[!", "[^") if t[0] == "[" and len(t) > 1 else re.escape(t)) for t in tokens
    )
    return re.compile("(?:%s)\\Z" % text, re.DOTALL)
