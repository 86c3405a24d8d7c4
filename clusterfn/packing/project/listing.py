"""List what of a folder travels and what does not, each with the rule that leaves it out.

Code of a package travels, and what an import of the listed code names. Of all else git decides, and without git all but
hidden folders. Environments are known by what is in them, and what a build has made by where that lies.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from clusterfn.packing.files import Member, holds_credentials
from clusterfn.packing.project import git

Rule = Literal["cache", "environment", "credentials", "git", "hidden", "build", "link", "unreadable"]
EXTENSIONS = (".so", ".pyd", ".dylib")
_CACHES = frozenset(["__pycache__", ".git", ".hg", ".svn", ".ipynb_checkpoints"])
_OF_ENVIRONMENTS = frozenset(["pyvenv.cfg", "conda-meta"])
_OF_CACHES = "CACHEDIR.TAG"
# Beside one of these, folders named `build` and `dist` are those of a builder.
_BUILT_BY = frozenset(["pyproject.toml", "setup.py", "setup.cfg"])
_BUILT = {"build": re.compile(r"(?:lib|bdist|temp)(?:\..*)?"), "dist": re.compile(r".*\.(?:whl|egg|zip|tar\.\w+|exe)")}
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b(?:[^\n(]|\([^)]*\))*", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_PACKAGES = frozenset(["site-packages", "dist-packages"])
# A folder that has no Python file among so many entries holds data.
_LOOKED_AT = 20_000
# Ignored folders may hold data sets: so many of their entries are looked at for folders.
_SEEN_SOON = 2_000


class Exclusion(NamedTuple):
    """The outermost file or folder that a rule leaves out: its name, and its path here."""

    rule: Rule
    name: str
    path: str


class TooMuch(Exception):
    """It has more bytes or files than asked for: `members` are those that were found until then."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__("too much")
        self.members = members


class Listing:
    """One walk through a folder.

    Args:
        root: The folder, absolute.
        package: Whether it is a package of a function: links are followed, as its files go into a bundle.
        always: The path of a file that belongs to it whatever git says.
        words: Names of modules that are imported, besides those that its code names.
        most: Bytes and files that it may have.

    Attributes:
        files: What travels.
        folders: The names of those of which no file does.
        links: Name and target of links to folders that stay links.
        left_out: What does not travel.
        ignored: The names of code that travels although git ignores it.
    """

    def __init__(
        self, root: str, *, package: bool = False, always: str = "", words: Iterable[str] = (),
        most: tuple[int, int] = (sys.maxsize, sys.maxsize), above: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.files: list[Member] = []
        self.folders: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.left_out: list[Exclusion] = []
        self.ignored: list[str] = []
        self._package, self._always, self._most, self._size = package, always, most, 0
        self._root, self._real = root, os.path.realpath(root)
        self._above = (*above, self._real)
        # Each folder that was seen.
        self._folders: list[str] = []
        self._names: Collection[str] | None = None
        self._parents: set[str] = set()
        self._asked, self._soon = "", _SEEN_SOON
        self._walk(root, "", "")
        if always and not any(each.path == always for each in self.files):
            self._add(Member(os.path.relpath(always, root).replace(os.sep, "/"), always, os.stat(always)))
        self._take_imported(set(words))
        if self._asked == "now" and package:
            git.keep(root, self._names, self._folders)

    def _listed(self) -> Collection[str] | None:
        """Return what git lists, which is asked once, and of a package only if it has more than code."""
        if not self._asked:
            try:
                self._names, self._asked = git.kept(self._root), "before"
            except KeyError:
                self._names, self._asked = git.listed(self._root), "now"
            self._parents = _parents_of(self._names or ())
        return self._names

    def _walk(self, path: str, prefix: str, made: str, code_only: bool = False) -> None:
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            self._leave("unreadable", prefix[:-1], path)
            return
        names = {entry.name for entry in entries}
        if prefix and self._is_made(names, prefix[:-1], path):
            return
        self._folders.append(path)
        count, links, is_package = len(self.files), len(self.links), self._package or "__init__.py" in names
        makes = not _BUILT_BY.isdisjoint(names)
        for entry in entries:
            name = prefix + entry.name
            if made and _BUILT[made].fullmatch(entry.name):
                self._leave("build", name, entry.path)
            elif entry.is_symlink():
                self._link(entry, name, is_package, code_only)
            elif entry.is_dir():
                if entry.name not in _CACHES and self._enters(entry, name, is_package, code_only):
                    self._walk(entry.path, f"{name}/", entry.name if makes and entry.name in _BUILT else "", code_only)
            elif entry.is_file() and self._takes(entry.path, name, is_package, code_only):
                self._add(Member(name, entry.path, entry.stat()))
        if prefix and (count, links) == (len(self.files), len(self.links)) and not code_only:
            self.folders.append(prefix[:-1])

    def _enters(self, entry: os.DirEntry[str], name: str, is_package: bool, code_only: bool) -> bool:
        """Whether a folder is looked through; else note why not."""
        if code_only:
            return entry.name.isidentifier()
        if entry.name == "node_modules":
            return self._leave("build", name, entry.path)
        if is_package and os.path.exists(os.path.join(entry.path, "__init__.py")):
            return True
        names = self._listed()
        if names is None and entry.name.startswith(".") and not is_package:
            return self._leave("hidden", name, entry.path)
        if names is None or name in self._parents:
            return True
        if name in names or f"{name}/" in names:
            # It is a submodule, which may not have been fetched, or a repository of its own.
            below = git.listed(entry.path) if os.path.exists(os.path.join(entry.path, ".git")) else None
            self._names = {*names, *(f"{name}/{each}" for each in below or ())}
            self._parents = _parents_of(self._names)
            self.folders += [] if below else [name]
            return below is not None
        self._folders.append(entry.path)
        return self._outline(entry.path, name) and self._leave("git", name, entry.path)

    def _outline(self, path: str, name: str) -> bool:
        """Note a folder in which git lists nothing, and those in it that are seen soon: a job may write into them.

        Return whether something in it does not travel.
        """
        with contextlib.suppress(OSError), os.scandir(path) as found:
            entries = list(itertools.islice(found, self._soon))
            self._soon -= len(entries)
            if self._is_made({entry.name for entry in entries}, name, path):
                return False
            if not os.path.basename(path).startswith("."):
                self.folders.append(name)
                return not self._soon or any([
                    entry.name in _CACHES or not entry.is_dir(follow_symlinks=False)
                    or self._outline(entry.path, f"{name}/{entry.name}")
                    for entry in entries
                ])  # fmt: skip
        return True

    def _is_made(self, names: Collection[str], name: str, path: str) -> bool:
        """Whether a folder with these names in it is an environment or a cache."""
        rule: Rule = "environment" if _OF_ENVIRONMENTS.intersection(names) else "cache"
        return (rule == "environment" or _OF_CACHES in names) and not self._leave(rule, name, path)

    def _takes(self, path: str, name: str, is_package: bool, code_only: bool) -> bool:
        """Whether a file travels; else note why not."""
        is_code = path.endswith(".py")
        if code_only or path == self._always:
            return is_code or not code_only
        if path.endswith((".pyc", ".pyo")):
            return False
        if not is_code and holds_credentials(path):
            return self._leave("credentials", name, path)
        if (is_code and self._package) or (names := self._listed()) is None or name in names:
            return True
        if is_code and is_package:
            self.ignored.append(name)
            return True
        return self._leave("git", name, path)

    def _link(self, entry: os.DirEntry[str], name: str, is_package: bool, code_only: bool) -> None:
        """Take what a link leads to, or the link: one inside of the folder, or to data that the host may have too."""
        real = os.path.realpath(entry.path)
        if os.path.isfile(real):
            if self._takes(entry.path, name, is_package, code_only):
                if not real.endswith(".py") and holds_credentials(real):
                    self._leave("credentials", name, entry.path)
                else:
                    self._add(Member(name, entry.path, os.stat(real)))
        elif code_only or entry.name.startswith(".#"):  # an editor's lock
            return
        elif not self._package and (names := self._listed()) is not None and name not in names:
            self._leave("git", name, entry.path)
        elif os.path.isdir(real):
            self._link_to_folder(entry, name, real)
        else:
            target = os.readlink(entry.path)
            if os.path.isabs(target) and not self._package:
                self.links.append((name, target))
            self._leave("link", name, entry.path)

    def _link_to_folder(self, entry: os.DirEntry[str], name: str, real: str) -> None:
        is_inside = is_below(real, root_of(self._real) if self._package else self._real)
        names = os.listdir(real) if os.access(real, os.R_OK | os.X_OK) else []
        if not _OF_ENVIRONMENTS.isdisjoint(names):
            self._leave("environment", name, entry.path)
        elif is_inside and not self._package:
            here = os.path.join(self._real, os.path.dirname(name))
            self.links.append((name, os.path.relpath(real, here).replace(os.sep, "/")))
        elif (is_inside or any(each.endswith((".py", *EXTENSIONS)) for each in names)) and not is_foreign(real):
            # Links may also lead to each other.
            above = (*self._above, os.path.realpath(os.path.dirname(entry.path)))
            if not any(is_below(each, real) for each in above):
                rest = (self._most[0] - self._size, self._most[1] - len(self.files))
                below = Listing(real, package=True, most=rest, above=above)
                for each in below.files:
                    self._add(each._replace(name=f"{name}/{each.name}"))
                self.folders += [f"{name}/{each}" for each in below.folders]
                self.left_out += [each._replace(name=f"{name}/{each.name}") for each in below.left_out]
        else:
            if not self._package:
                self.links.append((name, real))
            self._leave("link", name, entry.path)

    def _add(self, member: Member) -> None:
        self.files.append(member)
        # A package with compiled code does not travel.
        self._size += 0 if self._package and member.name.endswith(EXTENSIONS) else member.facts.st_size
        # The check comes at once, because the folder may contain a whole disk.
        if self._size > self._most[0] or len(self.files) > self._most[1]:
            raise TooMuch(self.files)

    def _leave(self, rule: Rule, name: str, path: str) -> bool:
        self.left_out.append(Exclusion(rule, name, path))
        return False

    def _take_imported(self, words: set[str]) -> None:
        """Add code that git ignores, or that is hidden, if an import of the code that travels may mean it."""
        read = -1
        while read < len(self.files):
            candidates = [each for each in self.left_out if each.rule in ("git", "build") and _stem(each.path)]
            new = self.files[max(read, 0) :] if candidates else []
            words.update(*(imported_words(each) for each in new if each.name.endswith(".py")))
            read = len(self.files)
            for each in candidates:
                if _stem(each.path) in words and self._take_code(each):
                    self.left_out.remove(each)
                    self.ignored.append(each.name)
                    self.folders = [name for name in self.folders if not f"{name}/".startswith(f"{each.name}/")]

    def _take_code(self, left: Exclusion) -> bool:
        count = len(self.files)
        if not os.path.isdir(left.path):
            self._add(Member(left.name, left.path, os.stat(left.path)))
        elif holds_code(left.path):
            self._walk(left.path, f"{left.name}/", "", code_only=True)
        return count < len(self.files)


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is that of a folder, or of something in it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


@functools.lru_cache(maxsize=1024)
def root_of(folder: str) -> str:
    """Return the project around a folder: where there is a repository or a pyproject.toml, or else the folder above."""
    for above in (folder, *map(str, Path(folder).parents)):
        if any(os.path.exists(os.path.join(above, name)) for name in (".git", *_BUILT_BY)):
            return above
    return os.path.dirname(folder)


def _parents_of(names: Iterable[str]) -> set[str]:
    parents: set[str] = set()
    for name in names:
        # git lists a repository of its own as `name/`.
        above = name.rstrip("/").rpartition("/")[0]
        while above and above not in parents:
            parents.add(above)
            above = above.rpartition("/")[0]
    return parents


def _stem(path: str) -> str:
    """Return how an import names a file or a folder; "" if none can."""
    name = os.path.basename(path).removesuffix(".py")
    return name if name.isidentifier() else ""


def imported_words(member: Member) -> frozenset[str]:
    """Return all words of the imports in a Python file."""
    return _words(member.path, member.facts.st_size, member.facts.st_mtime_ns)


@functools.lru_cache(maxsize=1 << 15)
def _words(path: str, size: int, mtime_ns: int) -> frozenset[str]:
    text = b""
    # The error appears when the file is sent.
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - a Path takes as long as the read
        text = b" ".join(_IMPORT.findall(file.read()))
    return frozenset(each.decode("utf-8", "replace") for each in _WORD.findall(text))


def holds_code(folder: str) -> bool:
    """Return whether an import finds a module in this folder, or in one below it that an import can name."""
    left = _LOOKED_AT
    for _, folders, names in os.walk(folder):
        if any(name.endswith((".py", *EXTENSIONS)) for name in names):
            return True
        folders[:] = sorted(name for name in folders if name.isidentifier() and name not in _CACHES)
        left -= len(names) + len(folders)
        # The folder may hold millions of data files, and this runs at each import of a namespace package.
        if left < 0:
            return False
    return False


@functools.lru_cache(maxsize=1024)
def is_foreign(real: str) -> bool:
    """Return whether a path without links is in the standard library, or installed."""
    return not _PACKAGES.isdisjoint(real.split(os.sep)) or f"{real}{os.sep}".startswith(_foreign_folders())


@functools.lru_cache(maxsize=1)
def _foreign_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[key]) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib"))
