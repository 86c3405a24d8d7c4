"""What is said of the rules by which files are left out: which there are, why, and the one way to send them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from clusterfn.config.notes import found
from clusterfn.display import console
from clusterfn.packing.project import git
from clusterfn.packing.project.listing import Exclusion, Listing

_NAMED = 5
_WHY = {
    "environment": ("it is a virtual environment", "name its packages in environment= or packages="),
    "credentials": (
        "it looks like a key or a password",
        "pass clusterfn.File({path!r}) to a function, or the variable with --secret NAME",
    ),
    "git": ("git ignores it", "git add --force {shown}"),
    "hidden": ("it is a hidden folder outside of a git repository", "git init {root}"),
    "build": ("it has packages of Node.js", "rename it"),
    "link": ("it is a link to {target}, outside of the project", "copy that into the project"),
    "unreadable": ("you may not read it", "chmod u+r {path}"),
}
_REPORTED = ("credentials", "link", "unreadable")


def explain(left: Exclusion) -> str:
    """Say why something was not sent, and the one way to send it."""
    why, remedy = _WHY[left.rule]
    if left.rule == "git" and git.above(left.path, ".git") is None:
        remedy = "take it out of .gitignore"
    root, target = left.path[: -len(left.name) - 1], os.path.realpath(left.path)
    shown = left.path.removeprefix(os.path.join(os.getcwd(), ""))
    return f"{why}; to send it: {remedy}".format(shown=shlex.quote(shown), path=left.path, root=root, target=target)


def tell_of(listing: Listing) -> None:
    """Name once what a user does not expect: keys, links out of the project, code and data that git ignores."""
    for rule in _REPORTED:
        _tell("left-out", {left.path: left for left in listing.left_out if left.rule == rule})
    _tell("ignored-code", dict.fromkeys(listing.ignored))
    ignored = [left for left in listing.left_out if left.rule == "git"]
    # A file that is missed by its own name is an error of its own, unlike a folder in which a program looks for files.
    looked_through = [left.path for left in ignored if left.name in listing.folders]
    looked_through += [
        os.path.join(os.path.dirname(left.path), f"*{os.path.splitext(left.path)[1]}")
        for left in ignored
        if "/" in left.name and os.path.isfile(left.path)
    ]
    _tell("ignored-data", dict.fromkeys(looked_through))


def _tell(id_: str, names: Mapping[str, Exclusion | None]) -> None:
    """Say a note about those of the names about which it has not been said; the first of them says why."""
    new = [name for name in names if console.is_new(id_, name)]
    if new:
        more = f" and {len(new) - _NAMED} more" if len(new) > _NAMED else ""
        first = names[new[0]]
        console.note(found(id_, names=", ".join(new[:_NAMED]) + more, why=first and explain(first)))
