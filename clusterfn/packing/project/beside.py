"""Data that own modules look for by their `__file__`, outside of packages: what the code names travels, if it fits."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator

from clusterfn.config.notes import found
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.packing import code_facts
from clusterfn.packing.files import Member, holds_credentials
from clusterfn.packing.project import git, rules
from clusterfn.packing.project.listing import OF_ENVIRONMENTS, Listing

_PATH = re.compile(r"[^\n]*\w[^\n]*")


def data_beside(modules: Iterable[Member], room: int) -> list[Member]:
    """Return the files that the code of these modules names, by names relative to where imports look for them.

    A search that finds nothing is no error, so data that does not fit into `room` bytes is named.
    """
    members: dict[str, Member] = {}
    # A link to a package may lead elsewhere.
    for module in (each for each in modules if each.path.endswith(os.path.join("", *each.name.split("/")))):
        root, own = module.path[: -len(module.name) - 1], os.path.dirname(module.path)
        strings = code_facts.of_file(module.path, module.facts.st_mtime_ns).strings
        for name in sorted(each for each in strings if _PATH.fullmatch(each) and not os.path.isabs(each)):
            # What lies in its package travels with that.
            if ".." in name or (own != root and glob.glob(os.path.join(own, name))):
                continue
            try:
                named = {each.name: each for each in _named(root, name) if each.name not in members}
                size = sum(each.facts.st_size for each in named.values())
            except git.GitRefused:
                raise
            except ConfigError:
                named, size = {}, room + 1
            if size <= room:
                members.update(named)
                room -= size
            else:
                console.note(found("beside-code", path=os.path.join(root, name), module=module.name))
    return list(members.values())


def _named(root: str, name: str) -> Iterator[Member]:
    for path in sorted(glob.glob(os.path.join(root, name))):
        relative = os.path.relpath(path, root).replace(os.sep, "/")
        # Neither `.git`, caches and keys nor an environment are data.
        if any(part.startswith((".", "__")) or part == "node_modules" for part in relative.split("/")):
            continue
        is_folder, is_data = os.path.isdir(path), os.path.isfile(path) and not path.endswith(".py")
        if not OF_ENVIRONMENTS.isdisjoint(os.listdir(path)) if is_folder else not is_data or holds_credentials(path):
            continue
        listed = git.listed(root)
        git.keep(root, listed, [root, os.path.dirname(path)])
        if listed is not None and relative not in listed:
            console.note(found("ignored-data", names=path))
        elif is_folder:
            listing = Listing(path, package=True)
            rules.tell_of(listing)
            yield from (member._replace(name=f"{relative}/{member.name}") for member in listing.files)
        else:
            yield Member(relative, path, os.stat(path))
