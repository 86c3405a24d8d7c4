"""Read lines as pip means them, wherever they stand: in requirements.txt, in a `pip:` section, or in `packages=`.

uv reads the same lines when it resolves them. Here is only what decides something before: which projects are wanted,
which build of PyTorch, which indexes and hashes, and what makes a lock out of date.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterfn.bridge.builder.plan import local_path, masked
from clusterfn.config.text_file import read_text
from clusterfn.environment.lock import file_name
from clusterfn.environment.project import (
    EXTRAS,
    GIT,
    PIP_LINES,
    REQUIREMENTS,
    ProjectFile,
    digest_of_archive,
    local_packages,
    normalize,
    relative_path,
)
from clusterfn.environment.specification import Requirement, Specification, at, refuse_conda, wheel_requirement
from clusterfn.errors import ConfigError

_INDEX_URL, _MORE_INDEXES, _FIND_LINKS = ("--index-url", "-i"), ("--extra-index-url",), ("--find-links", "-f")
_OTHER_FILES, _EDITABLE = ("-r", "--requirement", "-c", "--constraint"), ("-e", "--editable")
WITH_VALUE = (*_INDEX_URL, *_MORE_INDEXES, *_FIND_LINKS, *_OTHER_FILES, *_EDITABLE)
_BINARY, _OF_SERVERS = ("--only-binary", "--no-binary"), ("--trusted-host", "--use-feature")
# They say nothing about which projects are wanted.
_LEFT_TO_UV = (*_BINARY, *_OF_SERVERS, "--prefer-binary", "--pre", "--require-hashes", "--no-index")
_ALL_WITH_VALUE = (*WITH_VALUE, *_BINARY, *_OF_SERVERS)
_OPTION_BEHIND = re.compile(r"\s(--?(?!hash[\s=])[a-z][\w-]*)")
_HASH = re.compile(r"\s--hash[\s=]+(\w+):([0-9a-fA-F]+)")
_NAMED = re.compile(r"([\w.-]+\s*(?:\[[^\]]*\])?)\s*@\s*(\S.*)")
_VERSION_CONTROL = re.compile(r"(?:hg|svn|bzr)\+")
_EGG = re.compile(r"[#&]egg=([\w.-]+)")
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar\.\w+|tgz)$")


@dataclass
class RequirementLines:
    """The meaning of lines.

    Attributes:
        folder: From which relative paths count.
        given: The lines for uv; those of other files in their place.
        means: Every line and those of other files, as they mean the same on every machine.
        local: The folders of the user's own packages.
        is_empty: Whether they name no package.
    """

    folder: Path
    wanted: list[Requirement] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    hashes: dict[str, set[str]] = field(default_factory=dict)
    means: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    is_empty: bool = True
    replaces_index: bool = False

    def read_file(self, path: Path, seen: tuple[Path, ...] = ()) -> None:
        """Read a file, with those that it names; raise ConfigError with the number of a line that cannot be locked."""
        if path not in seen:
            for number, line in _logical_lines(read_text(path)):
                self._take(line, f"{path.name}:{number}", (*seen, path))

    def add(self, text: str, place: str = "") -> None:
        """Read one line that stands elsewhere; raise as `read_file`."""
        line = next((line for _, line in _logical_lines(text)), "")
        if line:
            self._take(line, place, ())

    def _take(self, line: str, place: str, seen: tuple[Path, ...]) -> None:
        above = seen[-1].parent if seen else self.folder
        options = _options(line, place)
        for option, value in options:
            one = line if len(options) == 1 else f"{option} {value}".strip()
            if option in WITH_VALUE and not value:
                raise ConfigError(f"{at(place)}{option} has no value", hint=f'write "{option} VALUE" as one string')
            if option in _OTHER_FILES:
                if "://" in value:
                    # Its content may change at any time, and a lock depends on files alone.
                    what = f'{at(place)}"{masked(one)}" names a file on a server'
                    raise ConfigError(what, hint=f"download it, `curl -LO {masked(value)}`, and name your copy")
                path = above / Path(value).expanduser()
                if not path.is_file():
                    what = f'{at(place)}"{one}" names a file that is not here'
                    raise ConfigError(what, hint=f"is {path} its path?")
                if option in _OTHER_FILES[:2]:
                    self.read_file(path, seen)
                    continue
                # A constraint asks for no package: what it says of PyTorch is left to uv.
                constraints = RequirementLines(self.folder)
                constraints.read_file(path, seen)
                self.means += constraints.means
                self.given.append(f"{_OTHER_FILES[3]} {path.absolute()}")
                continue
            if option in _FIND_LINKS:
                value = value if "://" in value else str(above / Path(value).expanduser())
            # pip clones an editable repository, and uv has no editable ones.
            is_git = value.startswith(GIT) and option in _EDITABLE
            given = value if is_git else f"{option} {value}".strip() if option else one
            # uv reads one name a line.
            self.given += [f"{option} {each}" for each in value.split(",")] if option in _BINARY else [given]
            if not option or option in _EDITABLE:
                self.is_empty = False
                self._requirement(one, value or one, option, place)
                continue
            if option in (*_INDEX_URL, *_MORE_INDEXES):
                self.indexes.append(value)
                self.replaces_index |= option in _INDEX_URL
            elif option not in (*_FIND_LINKS, *_LEFT_TO_UV):
                raise ConfigError(f'{at(place)}"{masked(one)}" cannot be locked', hint="remove this option of pip")
            self.means.append(one)

    def _requirement(self, line: str, text: str, option: str, place: str) -> None:
        bare = _HASH.sub("", f" {text}").strip()
        refuse_conda(bare, place)
        named = _NAMED.fullmatch(bare)
        address = (named[2] if named else bare).partition(" ;")[0].strip()
        if _VERSION_CONTROL.match(address):
            raise ConfigError(
                f"{at(place)}{masked(line)!r} is a repository of another kind than git",
                hint="clone it and name its folder, -e ./folder (clusterfn then sends it as source), or name a "
                "released version",
            )
        if address.startswith(GIT):
            egg = _EGG.search(address)
            last = address.partition("#")[0].rpartition("/")[2].partition("@")[0]
            name = named[1].partition("[")[0] if named else egg[1] if egg else last.removesuffix(".git")
            self.wanted.append(Requirement(normalize(name.strip()), f"{name} @ {address}"))
            self.means.append(masked(line))
            return
        path = self._path(address, bool(option))
        if path is not None:
            self._local(line, path, place)
            return
        # A wheel may be named by its address alone.
        is_wheel = "://" in address and not named
        stem = file_name(address).partition("-")[0]
        self.wanted.append(Requirement(normalize(stem), bare) if is_wheel else wheel_requirement(bare, place))
        for kind, digest in _HASH.findall(f" {text}"):
            allowed = self.hashes.setdefault(self.wanted[-1].name, set())
            allowed.update([digest.lower()] if kind == "sha256" else [])
        self.means.append(line)

    def _path(self, address: str, is_editable: bool) -> Path | None:
        """Return the path that stands for a package; None if it is no path."""
        bare = address.partition("#")[0]
        is_path = is_editable or bare.startswith((".", "/", "~")) or _ARCHIVE.search(bare)
        if address.startswith("file:"):
            bare = local_path(bare) or ""
        elif "://" in address or not (is_path or ("/" in bare and (self.folder / EXTRAS.sub("", bare)).exists())):
            return None
        return self.folder / Path(bare.strip()).expanduser()

    def _local(self, line: str, path: Path, place: str) -> None:
        relative = relative_path(path, self.folder)
        inside = EXTRAS.sub("", relative)
        bare, counts = self.folder / inside, f"correct the path: it counts from {self.folder}"
        if not bare.exists():
            if re.search(r"@\s*file:", line):
                # This rejects a folder in which conda builds, with a better hint.
                wheel_requirement(line, place)
            raise ConfigError(f'{at(place)}"{line}" names what is not here', hint=counts)
        if not bare.is_dir():
            self.means.append(f"{line} {digest_of_archive(bare)}")
            return
        if not any((bare / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg")):
            what = f'{at(place)}"{line}" names a folder that has neither pyproject.toml nor setup.py'
            raise ConfigError(what, hint=f"{counts}, not from where pip was called")
        self.local.append(inside)
        self.means.append(f"-e {relative}")

    def wishes(self) -> dict[str, object]:
        """Return all that they mean, whatever their order, and what the user's own packages want."""
        sources = {str(number): {"path": place} for number, place in enumerate(self.local)}
        return {"lines": sorted(self.means), "local": local_packages(self.folder, {"sources": sources})}

    def project(self, path: Path, kind: str = REQUIREMENTS) -> ProjectFile:
        """Return these lines as uv reads them."""
        return ProjectFile(kind, path, hashes=self.hashes, lines=tuple(self.given))

    def added_to(self, spec: Specification) -> Specification:
        """Add these lines to a specification."""
        found = replace(spec, pip=tuple(self.wanted), indexes=tuple(self.indexes), replaces_index=self.replaces_index)
        if spec.wheels is not None or self.is_empty:
            return found
        wish = json.dumps(self.wishes(), sort_keys=True)
        return replace(found, wheels=self.project(spec.file or self.folder / "packages", PIP_LINES), wish=wish)


def _options(line: str, place: str) -> list[tuple[str, str]]:
    """Return the options of a line with their values, as pip reads them; one that is "" for a line of a requirement."""
    if not line.startswith("-"):
        requirement, *binary = re.split(r"\s+(?=--(?:no|only)-binary)", line, maxsplit=1)
        # pip heeds these options alone behind a requirement.
        if binary:
            return [("", requirement), *_options(binary[0], place)]
        behind = _OPTION_BEHIND.search(line)
        if behind:
            what = f'{at(place)}"{masked(line)}" has an option behind the requirement, where only --hash may be'
            raise ConfigError(what, hint=f"write {behind[1]} with its value on a line of its own, or remove it")
        return [("", "")]
    several = re.search("\\s-|[\"']", line)
    words = shlex.split(line) if several else line.split(None, 1)
    found = []
    while words:
        word = words.pop(0)
        if len(word) < 2 or not word.startswith("-"):
            hint = "write each option and each requirement on a line of its own"
            raise ConfigError(f'{at(place)}"{masked(line)}" is neither a requirement nor an option of pip', hint=hint)
        option, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if not equals and option in _ALL_WITH_VALUE and words:
            value = words.pop(0)
        found.append((option, value.strip()))
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with the numbers at which they begin, joined as pip joins them, and without comments."""
    begun, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        first = first or number
        # The text stays the same however deep a continued line is indented, as locks depend on it.
        line = re.sub(r"^\s+", "" if not begun or begun[-1].isspace() else " ", line)
        is_comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not is_comment:
            begun += line.rstrip("\\")
            continue
        # pip joins lines before it removes comments. So a backslash behind a comment makes the next line part of it.
        joined = re.sub(r"(^|\s)#.*", "", f"{begun} {line}" if is_comment else begun + line).strip()
        if joined:
            yield first, joined
        begun, first = "", 0
