"""Large archives come in pieces, so that a line that breaks costs one piece: `blobs/<sha256>.pieces/<n>-of-<count>`.

Joins them once all are there.
"""

import os
import shutil

from ..layout import blob, pieces_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

_BLOCK = 1 << 20


def join(root: str, sha256: str, token: str, moved: "Callable[[int], None]") -> "Optional[str]":
    """The archive, if it is there or all its pieces are; None if not.

    Args:
        root: The root of environments.
        sha256: The archive's.
        token: The builder's own, for what it writes aside.
        moved: Called after each block with 0; may raise to stop.
    """
    final, folder = blob(root, sha256), pieces_dir(root, sha256)
    if os.path.isfile(final):
        return final
    names = complete(folder)
    if not names:
        return None
    aside = "%s.%s" % (final, token)
    try:
        _write(aside, [os.path.join(folder, name) for name in names], moved)
        os.rename(aside, final)
    except FileNotFoundError:  # another builder was quicker
        return final if os.path.isfile(final) else None
    finally:
        if os.path.exists(aside):
            os.unlink(aside)
    shutil.rmtree(folder, ignore_errors=True)
    return final


def complete(folder: str) -> "list[str]":
    """The names of all pieces in their order; empty if one is missing."""
    try:
        found = [name.partition("-of-") for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    counts = {int(count) for number, _, count in found if number.isdecimal() and count.isdecimal()}
    for count in counts:
        names = ["%d-of-%d" % (number, count) for number in range(count)]
        if set(names) <= {"".join(parts) for parts in found}:
            return names
    return []


def _write(path: str, pieces: "list[str]", moved: "Callable[[int], None]") -> None:
    with open(path, "wb") as target:
        for piece in pieces:
            with open(piece, "rb") as source:
                for block in iter(lambda: source.read(_BLOCK), b""):
                    target.write(block)
                    moved(0)
