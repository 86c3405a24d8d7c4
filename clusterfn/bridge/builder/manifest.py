"""What an unpacked package consists of: `pkgs/<sha256>/manifest.json`.

Only data and its file. Written by `packages`, read by `conda`, `wheel` and `housekeeping`.
"""

import json
import os
from typing import NamedTuple

from ..supervisor.text import native, portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

FORMAT = 1
TEXT, BINARY = "text", "binary"


class File(NamedTuple):
    """One file of a package.

    Attributes:
        path: Below `files/`.
        link: The target, if it is a symbolic link.
        placeholder: What stands in it instead of the prefix; with `mode`, text or binary.
    """

    path: str
    size: int
    executable: bool = False
    link: "Optional[str]" = None
    placeholder: "Optional[str]" = None
    mode: "Optional[str]" = None


class Manifest(NamedTuple):
    """One package.

    Attributes:
        kind: conda or wheel.
        facts: info/index.json of a conda package; of a wheel the name of its dist-info folder.
        noarch: python or generic.
        entry_points: Lines `name = module:attribute`.
    """

    name: str
    version: str
    kind: str
    facts: "dict[str, Any]"
    noarch: "Optional[str]"
    entry_points: "list[str]"
    files: "list[File]"

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.size for file in self.files)


def write(manifest: Manifest, path: str) -> None:
    """Write and sync it."""
    document = dict(manifest._asdict(), format=FORMAT)
    with open(path, "w") as file:
        json.dump(portable(document), file)
        file.flush()
        os.fsync(file.fileno())


def read(path: str) -> "Optional[Manifest]":
    """What is there; None if it is not, or is of another format."""
    try:
        with open(path) as file:
            document = native(json.load(file))
        if document.pop("format") != FORMAT:
            return None
        document["files"] = [File(*each) for each in document["files"]]
        return Manifest(**document)
    except (OSError, ValueError, TypeError, KeyError):
        return None
