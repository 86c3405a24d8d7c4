"""Find the user's own modules, and collect the source of those that a call needs, with what they import in turn.

The user's own are those outside the standard library and site-packages: next to the script or notebook, below the
project's root, on PYTHONPATH, or editable. Nothing is executed or imported here. Whole top-level packages are sent; one
with a compiled extension is used in place on this machine, and elsewhere belongs to the environment.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.errors import PayloadError
from clusterfn.hosts.bridge_bundle import FileBundle, make
from clusterfn.packing import code_facts
from clusterfn.packing.files import Member, holds_credentials
from clusterfn.packing.project import git, listing, roots, rules

MOST_BYTES = 50 << 20
# The bridge brings clusterfn and cloudpickle, and the script itself is pickled by value.
NEVER = frozenset(
    ["__main__", "__mp_main__", "clusterfn", "_clusterfn", "_clusterfn_wire", "cloudpickle", *sys.builtin_module_names]
)


# A path with slashes below a folder, no part of which is hidden.
_NEAR = re.compile(r"(?:[^\W_][^/\n]*/)*[^\W_][^/\n]*")


class Compiled(NamedTuple):
    """A module or package of the user's own that is not sent, because it has a compiled extension.

    Attributes:
        name: As an import names it.
        extension: The file, or the first one.
        folder: Where an import finds it on this machine.
    """

    name: str
    extension: Path
    folder: Path


def is_own(name: str) -> bool:
    """Whether a module (by its name) is one of the user's own, which travel as source."""
    return bool(places(name.partition(".")[0]))


def places(name: str) -> list[str]:
    """Return the file of a module, or the folders of a package, if it is the user's own."""
    if name in NEVER:
        return []
    spec = find_spec(name)
    if spec is None:
        return []
    found: list[str] = []
    if spec.submodule_search_locations is not None:
        found = list(spec.submodule_search_locations)
        # Without an __init__.py, any folder of that name counts as a package, such as ./wandb with the logs of runs.
        if not spec.has_location:
            found = [place for place in found if listing.holds_code(place)]
    elif spec.origin and spec.has_location:
        found = [spec.origin]
    return [place for place in found if not listing.is_foreign(place) and os.path.exists(place)]


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return how Python would import a module, or has imported it; None if there is none."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


# What is compiled, by the top-level name of each module that was looked at.
compiled_by_module: dict[str, tuple[Compiled, ...]] = {}


def compiled_in(name: str) -> tuple[Compiled, ...]:
    """Return what of a top-level module was not sent, because it is compiled."""
    return compiled_by_module.get(name, ())


def collect(names: Iterable[str]) -> tuple[FileBundle | None, tuple[Compiled, ...]]:
    """Collect the files of the user's own modules among `names`, and of those that they import; None if none.

    Args:
        names: Names of modules, whose top-level packages are sent.

    Returns:
        The files, and which of these modules are not among them because they are compiled.

    Raises:
        PayloadError: They are larger than 50 MB.
        GitRefused: Git does not say which data belongs to them.
    """
    words = {part for name in names for part in name.split(".")}
    waiting = {name.partition(".")[0] for name in names}
    done: set[str] = set()
    files: dict[str, Member] = {}
    while waiting:
        name = waiting.pop()
        done.add(name)
        own = _source_members(name, words)
        files.update((member.name, member) for member in own)
        texts = (member for member in own if member.name.endswith(".py"))
        facts = (code_facts.of_file(member.path, member.facts.st_mtime_ns) for member in texts)
        waiting |= {name for module in facts for name in module.imports} - done
    code = [member for member in files.values() if member.name.endswith(".py")]
    files = {**{member.name: member for member in _files_beside(code)}, **files}
    if sum(member.facts.st_size for member in files.values()) > MOST_BYTES:
        raise PayloadError(
            f"the modules that the function needs are larger than {format_size(MOST_BYTES)}",
            evidence=listing.largest(files.values()),
            hint="list data in .gitignore, and pass it as clusterfn.File or clusterfn.Directory",
        )
    read = {name: Path(member.path).read_bytes() for name, member in files.items()}
    tops = {name.partition("/")[0].removesuffix(".py"): member.path for name, member in files.items()}
    read.update({f"{path.parent.name}/{path.name}": path.read_bytes() for path in roots.metadata_of(tops)})
    return make(read) if read else None, tuple(unit for name in sorted(done) for unit in compiled_in(name))


def _source_members(name: str, words: Iterable[str]) -> list[Member]:
    """Return the files of a module that go as source, and note what does not."""
    members: dict[str, Member] = {}
    for place in places(name):
        if os.path.isfile(place):
            found = [Member(os.path.basename(place), place, os.stat(place))]
        else:
            listed = listing.Listing(place, package=True, words=words)
            rules.tell_of(listed)
            found = [member._replace(name=f"{name}/{member.name}") for member in listed.files]
        # The first of two folders of a namespace package wins, as in an import.
        for member in found:
            members.setdefault(member.name, member)
    compiled: dict[str, Compiled] = {}
    for file, member in members.items():
        if file.endswith(listing.EXTENSIONS):
            unit, path = _unit(file, members), Path(member.path)
            compiled.setdefault(unit, Compiled(unit, path, path.parents[file.count("/")]))
    compiled_by_module[name] = tuple(compiled.values())
    return [member for file, member in members.items() if not compiled or _unit(file, members) not in compiled]


def _files_beside(code: Iterable[Member]) -> Iterator[Member]:
    """Yield files outside of packages that modules name: by paths from where imports look for them, if they use
    `__file__`. Folders, hidden files and keys stay, and what git ignores.
    """
    for module in code:
        if not module.path.endswith(os.path.join("", *module.name.split("/"))):
            # A link to a package leads elsewhere.
            continue
        root = module.path[: -len(module.name) - 1]
        for name in sorted(code_facts.of_file(module.path, module.facts.st_mtime_ns).strings):
            path = os.path.join(root, name)
            is_near = _NEAR.fullmatch(name) is not None and os.path.isfile(path)
            if is_near and not name.endswith(".py") and not holds_credentials(path):
                listed = git.listed(root)
                git.keep(root, listed, [root, os.path.dirname(path)])
                if listed is None or name in listed:
                    yield Member(name, path, os.stat(path))


def _unit(file: str, members: Collection[str]) -> str:
    """Return the outermost regular package around a file; in a namespace package alone, the module itself."""
    *folders, last = file.split("/")
    for count in range(1, len(folders) + 1):
        if "/".join([*folders[:count], "__init__.py"]) in members:
            return ".".join(folders[:count])
    return ".".join([*folders, last.partition(".")[0]])


def modules_in(bundle: FileBundle) -> list[str]:
    """Return the modules in a bundle made by `collect`.

    Example:
        >>> modules_in(make({"pkg/__init__.py": b"", "pkg/data.csv": b""}))
        ['pkg']
    """
    files = [file[:-3].split("/") for file in bundle.files if file.endswith(".py")]
    return sorted(".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in files)


def texts_in(bundle: FileBundle) -> tuple[bytes, ...]:
    """Return the texts of these modules."""
    return tuple(data for file, data in bundle.files.items() if file.endswith(".py"))
