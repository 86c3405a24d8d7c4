"""What is said of the rules by which files are left out: which there are, why, and the one way to send them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.display import console
from clusterfn.packing.files import Member
from clusterfn.packing.project import git
from clusterfn.packing.project.listing import Exclusion, Listing

_NAMED = 5
_WHY = {
    "cache": ("it is marked as a cache", "rm {shown}/CACHEDIR.TAG"),
    "environment": ("it is a virtual environment", "name its packages in environment= or packages="),
    "credentials": (
        "it looks like a key or a password", "pass clusterfn.File({path!r}), or for a variable secrets=[NAME]"
    ),
    "git": ("git ignores it", "git add --force {shown}"),
    "hidden": ("it is a hidden folder outside of a git repository", "git init {root}"),
    "build": ("a build has made it", "install it in the environment, or rename its folder"),
    "link": ("it is a link to {target}, outside of the project", "copy that into the project"),
    "unreadable": ("you may not read it", "chmod u+r {path}"),
}  # fmt: skip
_KEYS = (
    "not sent, because they look like keys or passwords: {}. To send one, pass clusterfn.File(PATH) to a function; for "
    "a variable of this process use secrets=[NAME], or --secret NAME"
)
_DATA = (
    "not sent, because git ignores them: {}. A program that looks there finds nothing: take them out of .gitignore, or "
    "keep them on the host and pass the path"
)
_LINKS = "not sent, because they are links out of the project: {}. To send one, copy what it leads to into the project"
_KEPT_LINKS = "sent as links, because they lead out of the project: {}. The host must have what they lead to"
_UNREADABLE = "not sent, because you may not read them: {}"
_IGNORED = "sent although git ignores it, because it is code that is imported: {}"
# What users of this process have read about.
_told: set[str] = set()


def explain(left: Exclusion) -> str:
    """Say why something was not sent, and the one way to send it."""
    why, remedy = _WHY[left.rule]
    if left.rule == "git" and git.above(left.path, ".git") is None:
        remedy = "take it out of .gitignore"
    root, target, shown = left.path[: -len(left.name) - 1], os.path.realpath(left.path), shlex.quote(_shown(left.path))
    return f"{why}; to send it: {remedy}".format(shown=shown, path=left.path, root=root, target=target)


def _shown(path: str) -> str:
    here = os.path.join(os.getcwd(), "")
    return path[len(here) :] if path.startswith(here) else path


def tell_of(listing: Listing) -> None:
    """Name once what a user does not expect: keys, links out of the project, code and data that git ignores."""
    kept_links, ignored = {name for name, _ in listing.links}, [each for each in listing.left_out if each.rule == "git"]
    # A file that is missed by its own name is an error of its own, unlike a folder in which a program looks for files.
    folders = [each.path for each in ignored if each.name in listing.folders]
    folders += [os.path.join(os.path.dirname(each.path), f"*{os.path.splitext(each.path)[1]}")
                for each in ignored if "/" in each.name and os.path.isfile(each.path)]  # fmt: skip
    for sentence, paths in (
        (_KEYS, [each.path for each in listing.left_out if each.rule == "credentials"]),
        (_LINKS, [each.path for each in listing.left_out if each.rule == "link" and each.name not in kept_links]),
        (_KEPT_LINKS, [each.path for each in listing.left_out if each.rule == "link" and each.name in kept_links]),
        (_UNREADABLE, [each.path for each in listing.left_out if each.rule == "unreadable"]),
        (_IGNORED, listing.ignored),
        (_DATA, folders),
    ):
        new = [each for each in dict.fromkeys(map(_shown, paths)) if each not in _told]
        _told.update(new)
        if new:
            more = f" and {len(new) - _NAMED} more" if len(new) > _NAMED else ""
            console.warn(sentence.format(", ".join(new[:_NAMED]) + more))


def largest(members: Iterable[Member]) -> list[str]:
    """Return lines about the largest of some files."""
    found = sorted(((each.facts.st_size, each.name) for each in members), reverse=True)[:_NAMED]
    return [f"{format_size(size):>10}  {name}" for size, name in found]
