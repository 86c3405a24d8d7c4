"""Read lines as pip means them, wherever they stand: in requirements.txt, in a `pip:` section, or in `packages=`.

uv reads the same lines when it resolves them. Here is only what decides something before: which projects are wanted,
which build of PyTorch, which indexes and hashes, and what makes a lock out of date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clusterfn.bridge.builder.fetch import local_path, masked
from clusterfn.config.text_file import read_text
from clusterfn.environment.local_packages import EXTRAS, digest_of_archive, local_packages, names_of, relative_path
from clusterfn.environment.project import PIP_LINES, ProjectFile, normalize
from clusterfn.environment.specification import Requirement, Specification, wheel_requirement
from clusterfn.errors import ConfigError

_OPTION = re.compile(r"(-[\w-]+)(?:\s+|=|$)(.*)", re.DOTALL)
_INDEX_URL, _MORE_INDEXES, _FIND_LINKS = ("--index-url", "-i"), ("--extra-index-url",), ("--find-links", "-f")
_OTHER_FILES, _EDITABLE = ("-r", "--requirement", "-c", "--constraint"), ("-e", "--editable")
WITH_VALUE = (*_INDEX_URL, *_MORE_INDEXES, *_FIND_LINKS, *_OTHER_FILES, *_EDITABLE)
# They say nothing about which projects are wanted.
_LEFT_TO_UV = ("--only-binary", "--prefer-binary", "--pre", "--require-hashes", "--no-index", "--trusted-host")
_HASH = re.compile(r"\s--hash[\s=]+(\w+):([0-9a-fA-F]+)")
_NAMED = re.compile(r"([\w.-]+\s*(?:\[[^\]]*\])?)\s*@\s*(\S.*)")
_VERSION_CONTROL = re.compile(r"(?:git|hg|svn|bzr)\+")
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar\.\w+|tgz)$")


@dataclass
class RequirementLines:
    """The meaning of lines.

    Args:
        folder: From which relative paths count.

    Attributes:
        given: The lines for uv, with their selectors; those of other files in their place.
        means: Every line and those of other files, as they mean the same on every machine.
        local: The folders of the user's own packages.
        archives: The wheels on this machine.
        prerelease: Whether they are wanted, too.
    """

    folder: Path
    wanted: list[Requirement] = field(default_factory=list)
    given: list[tuple[str, str]] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    find_links: list[str] = field(default_factory=list)
    hashes: dict[str, set[str]] = field(default_factory=dict)
    means: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    archives: list[str] = field(default_factory=list)
    replaces_index: bool = False
    prerelease: bool = False

    def read_file(self, path: Path, selector: str = "", seen: tuple[Path, ...] = ()) -> None:
        """Read a file, with those that it names.

        Raises:
            ConfigError: A line cannot be locked; with its number.
        """
        if path not in seen:
            for number, line in _logical_lines(read_text(path)):
                self._take(line, f"{path.name}:{number}", selector, (*seen, path))

    def add(self, text: str, place: str = "", selector: str = "") -> None:
        """Read one line that stands elsewhere.

        Raises:
            ConfigError: It cannot be locked.
        """
        line = next((line for _, line in _logical_lines(text)), "")
        if line:
            self._take(line, place, selector, ())

    def _take(self, line: str, place: str, selector: str, seen: tuple[Path, ...]) -> None:
        found = _OPTION.fullmatch(line)
        option, value = found.groups() if found else ("", "")
        above = seen[-1].parent if seen else self.folder
        if option in WITH_VALUE and not value:
            raise ConfigError(f"{_at(place)}{option} has no value", hint=f'write "{option} VALUE" as one string')
        if option in _OTHER_FILES:
            self._other_file(line, option, above / Path(value).expanduser(), place, selector, seen)
            return
        if option in _FIND_LINKS:
            value = value if "://" in value else str(above / Path(value).expanduser())
        self.given.append((f"{option} {value}" if option in _FIND_LINKS else line, selector))
        if not option or option in _EDITABLE:
            self._requirement(line, value or line, option, place, selector)
            return
        if option in (*_INDEX_URL, *_MORE_INDEXES):
            self.indexes.append(value)
            self.replaces_index |= option in _INDEX_URL
        elif option in _FIND_LINKS:
            self.find_links.append(value)
        elif option not in _LEFT_TO_UV:
            raise ConfigError(f'{_at(place)}"{line}" cannot be locked', hint="remove this option of pip")
        self.prerelease |= option == "--pre"
        self.means.append(line)

    def _other_file(
        self, line: str, option: str, path: Path, place: str, selector: str, seen: tuple[Path, ...]
    ) -> None:
        if not path.is_file():
            raise ConfigError(f'{_at(place)}"{line}" names a file that is not here', hint=f"is {path} its path?")
        # A constraint asks for no package: what it says of PyTorch is left to uv.
        into = self if option in _OTHER_FILES[:2] else RequirementLines(self.folder)
        into.read_file(path, selector, seen)
        if into is not self:
            self.means += into.means
            self.given.append((f"{_OTHER_FILES[3]} {path.absolute()}", selector))

    def _requirement(self, line: str, text: str, option: str, place: str, selector: str) -> None:
        bare = _HASH.sub("", f" {text}").strip()
        named = _NAMED.fullmatch(bare)
        address = (named[2] if named else bare).partition(" ;")[0].strip()
        if _VERSION_CONTROL.match(address):
            raise ConfigError(
                f"{_at(place)}{masked(line)!r} is a repository, which cannot be locked to a wheel",
                hint="clone it and name its folder, -e ./folder (clusterfn then sends it as source), or name a "
                "released version",
            )
        path = self._path(address, bool(option))
        if path is not None:
            self._local(line, path, place)
            return
        if "://" in address and not named:  # a wheel by its address alone
            file = unquote(urlsplit(address).path).rpartition("/")[2]
            wanted = Requirement(normalize(file.partition("-")[0]), bare, place, selector)
        else:
            wanted = wheel_requirement(bare, place, selector)
        self.wanted.append(wanted)
        for kind, digest in _HASH.findall(f" {text}"):
            self.hashes.setdefault(wanted.name, set()).update([digest.lower()] if kind == "sha256" else [])
        self.means.append(line)

    def _path(self, address: str, is_editable: bool) -> Path | None:
        """Return the path that stands for a package; None if it is no path."""
        if address.startswith("file:"):
            bare = local_path(address.partition("#")[0]) or ""
        elif "://" in address:
            return None
        else:
            bare = address.partition("#")[0]
            is_path = is_editable or bare.startswith((".", "/", "~")) or _ARCHIVE.search(bare)
            if not (is_path or ("/" in bare and (self.folder / EXTRAS.sub("", bare)).exists())):
                return None
        return self.folder / Path(bare.strip()).expanduser()

    def _local(self, line: str, path: Path, place: str) -> None:
        relative = relative_path(path, self.folder)
        bare = self.folder / EXTRAS.sub("", relative)
        if not bare.exists():
            if re.search(r"@\s*file:", line):
                wheel_requirement(line, place)  # knows where conda builds
            raise ConfigError(
                f'{_at(place)}"{line}" names what is not here', hint=f"correct the path: it counts from {self.folder}"
            )
        if bare.is_dir():
            self.local.append(EXTRAS.sub("", relative))
            self.means.append(f"-e {relative}")
        else:
            self.archives.append(relative)
            self.means.append(f"{line} {digest_of_archive(bare)}")

    @property
    def is_empty(self) -> bool:
        """Whether they name no package."""
        return not (self.wanted or self.local or self.archives)

    def local_packages(self) -> dict[str, object]:
        """Return what the user's own packages want, by their folders."""
        sources = {str(number): {"path": place} for number, place in enumerate(self.local)}
        return local_packages(self.folder, {"sources": sources})

    def project(self, kind: str, path: Path) -> ProjectFile:
        """Return these lines as uv reads them."""
        frozen = {name: frozenset(allowed) for name, allowed in self.hashes.items()}
        names = tuple(sorted(names_of(self.local_packages())))
        return ProjectFile(
            kind, path, hashes=frozen, local=names, lines=tuple(self.given), prerelease=self.prerelease
        )

    def added_to(self, spec: Specification) -> Specification:
        """Add these lines to a specification."""
        found = replace(
            spec, pip=(*spec.pip, *self.wanted), indexes=(*spec.indexes, *self.indexes),
            find_links=(*spec.find_links, *self.find_links), replaces_index=self.replaces_index,
        )  # fmt: skip
        if spec.project is not None or self.is_empty:
            return found
        plain = {each.text for each in self.wanted}
        means = sorted(each for each in self.means if each not in plain and not each.startswith(("-i", "-f", "--")))
        means += ["--pre"] if self.prerelease else []
        local = self.local_packages()
        more = json.dumps({"lines": means, "local": local}, sort_keys=True) if means or local else ""
        path = spec.file or self.folder / "packages"
        return replace(found, pip_section=self.project(PIP_LINES, path), more_wishes=more)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without comments, continued lines joined."""
    begun = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        begun += bare.rstrip("\\")
        if not bare.endswith("\\"):
            if begun.strip():
                yield number, begun.strip()
            begun = ""
    if begun.strip():
        yield number, begun.strip()


def _at(place: str) -> str:
    return f"{place}: " if place else ""
