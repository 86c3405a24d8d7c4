"""Refuse a root that `clusterfn move` has moved to another folder, or is moving there.

It leaves notes in both roots, JSON with `from` and `to`: `moving` in both until the new one is whole, then `moved` in
the old one.
"""

import json
import os

from .handler import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

_MOVING, _MOVED = "moving", "moved"


def refuse_moved(root: str) -> None:
    """Raise if a root is only what was left of one that has moved, or what has arrived so far of one that moves."""
    note = _read(root, _MOVED)
    if note is not None:
        raise Failure("moved", "it has moved to %s" % note["to"], root, to=note["to"])
    note = _read(root, _MOVING)
    if note is not None and _same(note["to"], root):
        raise _unfinished(note, root)


def refuse_moving(root: str) -> None:
    """Raise if a move has closed this root to new jobs, and was interrupted before it could open the new one."""
    refuse_moved(root)
    note = _read(root, _MOVING)
    if note is not None:
        raise _unfinished(note, root)


def _unfinished(note: "Dict[str, str]", root: str) -> Failure:
    return Failure("moving", "the move of %(from)s to %(to)s is not finished" % note, root, to=note["to"])


def _read(root: str, name: str) -> "Optional[Dict[str, str]]":
    try:
        with open(os.path.join(root, name), encoding="utf-8") as file:
            found = json.load(file)
        return {"from": str(found["from"]), "to": str(found["to"])}
    except (OSError, ValueError, KeyError, TypeError):  # mostly there is none
        return None


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
