"""List what of a folder travels and what does not, each with the rule that leaves it out.

Code of a function's package travels, and what an import of the listed code names. Of all else git decides, and without
git all but hidden folders. Environments are known by what is in them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.errors import ConfigError
from clusterfn.packing.files import Member, holds_credentials
from clusterfn.packing.project import git

Rule = Literal["environment", "credentials", "git", "hidden", "build", "link", "unreadable"]
EXTENSIONS = (".so", ".pyd", ".dylib")
_CODE = (".py", *EXTENSIONS)
_CACHES = frozenset(["__pycache__", ".git", ".hg", ".svn", ".ipynb_checkpoints"])
OF_ENVIRONMENTS = frozenset(["pyvenv.cfg", "conda-meta"])
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b(?:[^\n(]|\([^)]*\))*", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_PACKAGES = frozenset(["site-packages", "dist-packages"])
_STANDARD = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
_FOREIGN = tuple(os.path.join(os.path.realpath(path), "") for path in _STANDARD)
# A folder that has no code among so many entries holds data.
_LOOKED_AT = 20_000
# Ignored folders may hold data sets: so many of their entries are looked at for folders.
_SEEN_SOON = 2_000
_MOST_BYTES = 200 << 20
_MOST_FILES = 20_000


class Exclusion(NamedTuple):
    """The outermost file or folder that a rule leaves out: its name, and its path here."""

    rule: Rule
    name: str
    path: str


class Listing:
    """One walk through a folder; it raises ConfigError if that is too large, or git does not say what belongs to it.

    Args:
        root: The folder, absolute.
        package: Whether it is a package of a function: links are followed, as its files go into a bundle.
        always: The path of a file that belongs to it whatever git says.
        words: Names of modules that are imported, besides those that its code names.
        above: The real paths of the folders that lead to it.

    Attributes:
        files, folders: What travels, and the names of folders of which no file does.
        links: Name and target of links to folders that stay links.
        left_out: What does not travel.
        ignored: The names of code that travels although git ignores it.
    """

    def __init__(
        self, root: str, *, package: bool = False, always: str = "", words: Iterable[str] = (),
        above: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.files: list[Member] = []
        self.folders: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.left_out: list[Exclusion] = []
        self.ignored: list[str] = []
        self._root, self._package, self._size = root, package, 0
        self._above = (*above, os.path.realpath(root))
        self._seen: list[str] = []
        self._soon = _SEEN_SOON
        self._walk(root, "")
        if always and not any(member.path == always for member in self.files):
            self._add(Member(os.path.relpath(always, root).replace(os.sep, "/"), always, os.stat(always)))
        self._take_imported(set(words))
        if package and "_listed" in vars(self):
            git.keep(root, self._listed, self._seen)

    @functools.cached_property
    def _listed(self) -> frozenset[str] | None:
        # Of a package that is code alone, git is not asked.
        return git.listed(self._root)

    def _walk(self, path: str, prefix: str) -> None:
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            self._leave("unreadable", prefix[:-1], path)
            return
        if prefix and not OF_ENVIRONMENTS.isdisjoint(entry.name for entry in entries):
            self._leave("environment", prefix[:-1], path)
            return
        self._seen.append(path)
        count = len(self.files) + len(self.links)
        for entry in entries:
            name = prefix + entry.name
            if entry.name == "node_modules":
                self._leave("build", name, entry.path)
            elif entry.is_symlink():
                self._link(entry, name)
            elif entry.is_dir():
                self._enter(entry, name)
            elif entry.is_file() and self._takes(entry.path, name):
                self._add(Member(name, entry.path, entry.stat()))
        if prefix and count == len(self.files) + len(self.links):
            self.folders.append(prefix[:-1])

    def _enter(self, entry: os.DirEntry[str], name: str) -> None:
        """Look through a folder, or note why not."""
        if entry.name in _CACHES:
            return
        if self._package and os.path.exists(os.path.join(entry.path, "__init__.py")):
            self._walk(entry.path, f"{name}/")
        elif self._listed is None and entry.name.startswith(".") and not self._package:
            self._leave("hidden", name, entry.path)
        elif self._listed is not None and name not in self._listed:
            self._seen.append(entry.path)
            if self._outline(entry.path, name):
                self._leave("git", name, entry.path)
        elif self._listed is not None and os.path.exists(os.path.join(entry.path, ".git")):
            # It is a submodule, or a repository of its own.
            self._nest(Listing(entry.path, package=self._package, above=self._above), name)
        else:
            self._walk(entry.path, f"{name}/")

    def _nest(self, below: Listing, name: str) -> None:
        for member in below.files:
            self._add(member._replace(name=f"{name}/{member.name}"))
        self.folders += [f"{name}/{folder}" for folder in below.folders] if below.files or below.links else [name]
        self.links += [(f"{name}/{link}", target) for link, target in below.links]
        self.left_out += [left._replace(name=f"{name}/{left.name}") for left in below.left_out]
        self.ignored += [f"{name}/{path}" for path in below.ignored]

    def _outline(self, path: str, name: str) -> bool:
        """Note a folder in which git lists nothing, and those in it that are seen soon: a job may write into them.

        Return whether git leaves something out there.
        """
        with contextlib.suppress(OSError), os.scandir(path) as found:
            entries = list(itertools.islice(found, self._soon))
            self._soon -= len(entries)
            if not OF_ENVIRONMENTS.isdisjoint(entry.name for entry in entries):
                return self._leave("environment", name, path)
            if not os.path.basename(path).startswith("."):
                self.folders.append(name)
                for entry in entries:
                    if entry.name not in _CACHES and entry.is_dir(follow_symlinks=False):
                        self._outline(entry.path, f"{name}/{entry.name}")
            return bool(entries) or not self._soon
        return True

    def _takes(self, path: str, name: str) -> bool:
        """Whether a file travels; else note why not."""
        if path.endswith((".pyc", ".pyo")):
            return False
        if holds_credentials(path):
            return self._leave("credentials", name, path)
        is_code = self._package and path.endswith(_CODE)
        return is_code or self._listed is None or name in self._listed or self._leave("git", name, path)

    def _link(self, entry: os.DirEntry[str], name: str) -> None:
        """Take what a link leads to, or the link: one inside of the folder, or to data that the host may have too."""
        real = os.path.realpath(entry.path)
        if os.path.isfile(real):
            if holds_credentials(real):
                self._leave("credentials", name, entry.path)
            elif self._takes(entry.path, name):
                self._add(Member(name, entry.path, os.stat(real)))
        elif entry.name.startswith(".#"):  # an editor's lock
            return
        elif not self._package and self._listed is not None and name not in self._listed:
            self._leave("git", name, entry.path)
        elif os.path.isdir(real):
            self._link_to_folder(entry.path, name, real)
        else:
            self._leave_link(name, entry.path, os.readlink(entry.path))

    def _link_to_folder(self, path: str, name: str, real: str) -> None:
        folder = os.path.realpath(os.path.dirname(path))
        project = self._above[0]
        if self._package:
            project = git.above(self._above[-1], ".git") or os.path.dirname(self._above[-1])
        is_inside = is_below(real, project)
        names = os.listdir(real) if os.access(real, os.R_OK | os.X_OK) else []
        if not OF_ENVIRONMENTS.isdisjoint(names):
            self._leave("environment", name, path)
        elif is_inside and not self._package:
            self.links.append((name, os.path.relpath(real, folder).replace(os.sep, "/")))
        elif (is_inside or any(entry.endswith(_CODE) for entry in names)) and not is_foreign(real):
            # Links may also lead to each other.
            above = (*self._above, folder)
            if not any(is_below(parent, real) for parent in above):
                self._nest(Listing(real, package=True, above=above), name)
        else:
            self._leave_link(name, path, real)

    def _leave_link(self, name: str, path: str, target: str) -> None:
        if os.path.isabs(target) and not self._package:
            self.links.append((name, target))
        self._leave("link", name, path)

    def _add(self, member: Member) -> None:
        self.files.append(member)
        # A package with compiled code does not travel.
        self._size += 0 if self._package and member.name.endswith(EXTENSIONS) else member.facts.st_size
        # The check comes at once, because the folder may contain a whole disk.
        if self._size > _MOST_BYTES or len(self.files) > _MOST_FILES:
            much = f"more than {_MOST_FILES} files"
            if self._size > _MOST_BYTES:
                much = f"files larger than {format_size(_MOST_BYTES)}"
            hint = "list large files in .gitignore, and keep data on the host: pass its path to the script"
            raise ConfigError(f"the project {self._root} has {much}", evidence=largest(self.files), hint=hint)

    def _leave(self, rule: Rule, name: str, path: str) -> bool:
        self.left_out.append(Exclusion(rule, name, path))
        return False

    def _take_imported(self, words: set[str]) -> None:
        """Add code that git ignores if an import of the code that travels may mean it."""
        read = 0
        while candidates := [left for left in self.left_out if left.rule == "git" and _stem(left.path)]:
            words.update(*(imported_words(member) for member in self.files[read:]))
            read = len(self.files)
            taken = [left for left in candidates if _stem(left.path) in words and self._take_code(left)]
            if not taken:
                return
            self.left_out = [left for left in self.left_out if left not in taken]
            for left in taken:
                self.ignored.append(left.name)
                self.folders = [name for name in self.folders if not is_below(name, left.name)]

    def _take_code(self, left: Exclusion) -> bool:
        count = len(self.files)
        for path in [left.path] if left.path.endswith(".py") else _code_in(left.path):
            self._add(Member(left.name + path[len(left.path) :].replace(os.sep, "/"), path, os.stat(path)))
        return count < len(self.files)


def largest(members: Iterable[Member]) -> list[str]:
    """Return lines about the largest of some files."""
    found = sorted(((member.facts.st_size, member.name) for member in members), reverse=True)[:5]
    return [f"{format_size(size):>10}  {name}" for size, name in found]


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is that of a folder, or of something in it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def _stem(path: str) -> str:
    """Return how an import names a file or a folder; "" if none can."""
    name = os.path.basename(os.path.dirname(path) if os.path.basename(path) == "__init__.py" else path)
    return name.removesuffix(".py") if name.removesuffix(".py").isidentifier() else ""


def imported_words(member: Member) -> frozenset[str]:
    """Return all words of the imports in a file, if that is Python."""
    if not member.name.endswith(".py"):
        return frozenset()
    return _words(member.path, member.facts.st_size, member.facts.st_mtime_ns)


@functools.lru_cache(maxsize=1 << 15)
def _words(path: str, size: int, mtime_ns: int) -> frozenset[str]:
    text = b""
    # The error appears when the file is sent.
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - a Path takes as long as the read
        text = b" ".join(_IMPORT.findall(file.read()))
    return frozenset(word.decode("utf-8", "replace") for word in _WORD.findall(text))


def holds_code(folder: str) -> bool:
    """Return whether an import finds a module in this folder, or in one below it that an import can name."""
    return next(_code_in(folder), None) is not None


def _code_in(folder: str) -> Iterator[str]:
    found, left = False, _LOOKED_AT
    for path, folders, names in os.walk(folder):
        for name in sorted(names):
            if name.endswith(_CODE):
                found = True
                yield os.path.join(path, name)
        folders[:] = sorted(name for name in folders if name.isidentifier() and name not in _CACHES)
        left -= len(names) + len(folders)
        # The folder may hold millions of data files, and this runs at each import of a namespace package.
        if left < 0 and not found:
            return


def is_foreign(path: str) -> bool:
    """Return whether a path is in the standard library, or installed. A link may lead elsewhere at any time."""
    return (_is_foreign.__wrapped__ if os.path.islink(path) else _is_foreign)(os.path.abspath(path))


@functools.lru_cache(maxsize=1024)
def _is_foreign(path: str) -> bool:
    real = os.path.join(os.path.realpath(path), "")
    return not _PACKAGES.isdisjoint(real.split(os.sep)) or real.startswith(_FOREIGN)
