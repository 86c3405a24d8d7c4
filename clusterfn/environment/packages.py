"""Read what is wanted as lines: those of pip wherever they stand, `packages=[…]`, and what a function imports.

uv reads the lines of pip when it resolves them, and says what is wrong with one. Here is only what decides something
before: which projects are wanted, which build of PyTorch, which indexes and hashes, and what makes a lock out of date.

    packages=["python=3.11", "torch==2.7.1", "numpy>=2"]    from conda-forge
    "bioconda::samtools"                                    from a channel that is named
    "pip:torch-geometric"                                   from PyPI, or the index that uv is configured for
    "--index-url https://download.pytorch.org/whl/cu118"    an option of pip's: where its packages are

torch, torchvision and torchaudio come from PyPI, as wheels: PyTorch makes builds for each CUDA, and none for conda any
longer. "conda-forge::pytorch" is conda-forge's.

Of imports, the caller's Python counts, and the installed versions of the modules. Nothing is imported; the metadata of
installed projects is read.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterfn.bridge.builder.plan import local_path, masked
from clusterfn.config.yamlfile import read_text
from clusterfn.environment import package_sources, specification
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
from clusterfn.environment.specification import (
    Requirement,
    Specification,
    at,
    conda_requirement,
    refuse_conda,
    wheel_requirement,
)
from clusterfn.errors import ConfigError

_INDEX_URL, _MORE_INDEXES, _FIND_LINKS = ("--index-url", "-i"), ("--extra-index-url",), ("--find-links", "-f")
_FILES, _CONSTRAINTS, _EDITABLE = ("-r", "--requirement"), ("-c", "--constraint"), ("-e", "--editable")
WITH_VALUE = (*_INDEX_URL, *_MORE_INDEXES, *_FIND_LINKS, *_FILES, *_CONSTRAINTS, *_EDITABLE)
_OPTION = re.compile(r"(--[\w-]+|-\w)(?:\s*=\s*|\s+|$|(?<=-\w))(.*)")
_HASH = re.compile(r"\s--hash[\s=]+(\w+):([0-9a-fA-F]+)")
_NAMED = re.compile(r"([\w.-]+\s*(?:\[[^\]]*\])?)\s*@\s*(\S.*)")
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
        """Read a file, with those that it names; raise ConfigError for a line of conda's, and a file that is gone."""
        for number, line in _logical_lines(read_text(path)) if path not in seen else ():
            self._take(line, f"{path.name}:{number}", (*seen, path))

    def add(self, text: str, place: str = "") -> None:
        """Read one line that stands elsewhere; raise as `read_file`."""
        for _, line in _logical_lines(text):
            self._take(line, place, ())

    def _take(self, line: str, place: str, seen: tuple[Path, ...]) -> None:
        found = _OPTION.fullmatch(line)
        option, value = found.groups() if found else ("", line)
        if option in WITH_VALUE and not value:
            raise ConfigError(f"{at(place)}{option} has no value", hint=f'write "{option} VALUE" as one string')
        if option in (*_FILES, *_CONSTRAINTS):
            path = (seen[-1].parent if seen else self.folder) / Path(value).expanduser()
            if "://" in value or not path.is_file():
                # What a server has may change at any time, and a lock depends on files alone.
                what = f'{at(place)}"{masked(line)}" names a file that is not on this machine'
                raise ConfigError(what, hint="name a copy that is here, by its path")
            if option in _FILES:
                self.read_file(path, seen)
                return
            # A constraint asks for no package: what it says of PyTorch is left to uv.
            constraints = RequirementLines(self.folder)
            constraints.read_file(path, seen)
            self.means += constraints.means
            self.given.append(f"{option} {path.absolute()}")
            return
        # pip clones an editable repository, and uv has no editable ones.
        is_git = option in _EDITABLE and value.startswith(GIT)
        self.given.append(value if is_git else f"{option} {value}".strip())
        if not option or option in _EDITABLE:
            self.is_empty = False
            self._requirement(line, value, option, place)
            return
        if option in (*_INDEX_URL, *_MORE_INDEXES):
            self.indexes.append(value)
            self.replaces_index |= option in _INDEX_URL
        self.means.append(line)

    def _requirement(self, line: str, text: str, option: str, place: str) -> None:
        bare = _HASH.sub("", f" {text}").strip()
        refuse_conda(bare, place)
        named = _NAMED.fullmatch(bare)
        address = (named[2] if named else bare).partition(" ;")[0].strip()
        path = self._path(address, bool(option))
        if address.startswith(GIT):
            last = address.partition("#")[0].rpartition("/")[2].partition("@")[0]
            name = last.removesuffix(".git")
            if named:
                name = named[1].partition("[")[0]
            elif egg := _EGG.search(address):
                name = egg[1]
            self.wanted.append(Requirement(normalize(name.strip()), f"{name} @ {address}"))
            self.means.append(masked(line))
        elif path is not None and path.exists():
            self._local(line, path)
        else:
            # A wheel may be named by its address alone, and uv says what is wrong with a path.
            is_wheel = not named and (path is not None or "://" in address)
            stem = file_name(address).partition("-")[0]
            self.wanted.append(Requirement(normalize(stem), bare) if is_wheel else wheel_requirement(bare, place))
            for kind, digest in _HASH.findall(f" {text}"):
                allowed = self.hashes.setdefault(self.wanted[-1].name, set())
                allowed.update([digest.lower()] if kind == "sha256" else [])
            self.means.append(line)

    def _path(self, address: str, is_editable: bool) -> Path | None:
        """Return the path that stands for a package, without its extras; None if it is no path."""
        bare = EXTRAS.sub("", address.partition("#")[0])
        is_path = is_editable or bare.startswith((".", "/", "~")) or _ARCHIVE.search(bare)
        if address.startswith("file:"):
            bare = local_path(bare) or ""
        elif "://" in address or not (is_path or ("/" in bare and (self.folder / bare).exists())):
            return None
        return self.folder / Path(bare.strip()).expanduser()

    def _local(self, line: str, path: Path) -> None:
        if path.is_dir():
            self.local.append(relative_path(path, self.folder))
            extras = EXTRAS.search(line)
            self.means.append(f"-e {self.local[-1]}{extras[0] if extras else ''}")
        else:
            self.means.append(f"{line} {digest_of_archive(path)}")

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


_PIP = "pip:"
# Every call sends them, so no environment needs them.
_TRAVELS = ("clusterfn", "cloudpickle")


def from_packages(packages: Sequence[str]) -> Specification:
    """Parse `packages=` into a specification; raise ConfigError if one of them is not understood."""
    title = masked(f"packages={json.dumps(list(packages))}")
    conda = list[Requirement]()
    lines = RequirementLines(Path.cwd())
    sentences: list[str] = []
    words = iter(packages)
    for word in words:
        # A shell splits an option from its value.
        text = f"{word} {next(words, '')}" if word in WITH_VALUE else word
        if text.startswith("-"):
            lines.add(text)
            continue
        if text.startswith(_PIP):
            # An empty name raises here, as a comment would be left out without a word.
            if not text[len(_PIP) :].strip():
                wheel_requirement("")
            lines.add(text[len(_PIP) :])
            continue
        found = conda_requirement(text)
        if found.name in specification.TORCHES and "::" not in text:
            # conda writes torch=2.7 for what pip calls torch==2.7.*.
            single = re.fullmatch(r"([\w.-]+)\s*=\s*([\d.]+?)(\.?\*)?", text.strip())
            lines.add(f"{single[1]}=={single[2]}.*" if single else text.replace(" ", ""))
            other = f"{specification.USUAL_CHANNEL}::pytorch"
            sentence = f"{found.name} comes from PyPI, as a wheel (conda-forge's is {other})"
            sentences += [] if sentences else [sentence]
        elif specification.WITH_EXTRAS.match(text):
            lines.add(text)
            sentences.append(f"{text} comes from PyPI, because conda packages have no extras")
        else:
            conda.append(found)
    named = [requirement.channel for requirement in conda if requirement.channel]
    channels = named if conda and len(named) == len(conda) else [*package_sources.usual_channels(), *named]
    spec = Specification(title, tuple(dict.fromkeys(channels)), tuple(conda))
    return lines.added_to(replace(spec, sentences=tuple(sentences)))


def automatic(names: Iterable[str], python: tuple[int, int]) -> Specification:
    """Make the specification for imports of these top-level modules, with the caller's Python."""
    lines = RequirementLines(Path.cwd())
    sentences = []
    owners = projects_by_module()
    found = {normalize(project): project for name in names for project in owners.get(name, ())}
    # The standard library and the user's own modules belong to no project.
    for module in sorted(found.keys() - set(_TRAVELS)):
        project = importlib.metadata.distribution(found[module])
        name = normalize(project.metadata["Name"])
        why_not = _origin(project)
        if why_not:
            sentences.append(f"{name} {why_not}")
        else:
            lines.add(f"{name}=={project.version.partition('+')[0]}")
    minor = conda_requirement(f"python={python[0]}.{python[1]}")
    wanted = [requirement.text.replace("==", " ") for requirement in lines.wanted]
    listed = ", ".join([f"Python {python[0]}.{python[1]}", *wanted])
    said = f"no environment is set: clusterfn builds one from your imports: {listed}"
    spec = Specification(
        "what the function imports", package_sources.usual_channels(), (minor,), sentences=(said, *sentences)
    )
    return lines.added_to(spec)


def needed(names: Iterable[str]) -> list[str]:
    """List the modules that installed projects provide; neither the standard library nor what clusterfn sends."""
    owners = projects_by_module()
    return sorted(name for name in names if {normalize(owner) for owner in owners.get(name, ())} - set(_TRAVELS))


@functools.cache
def projects_by_module() -> Mapping[str, Sequence[str]]:
    """Map each installed top-level module to its projects, as importlib.metadata does from Python 3.10 on."""
    known = getattr(importlib.metadata, "packages_distributions", None)
    owners: dict[str, list[str]] = {} if known is None else dict(known())
    for project in importlib.metadata.distributions() if known is None else ():
        files = {path.parts[0].partition(".")[0] for path in project.files or () if path.suffix == ".py"}
        for name in (project.read_text("top_level.txt") or "").split() or files:
            owners.setdefault(name, []).append(project.metadata["Name"])
    return owners


def _origin(project: importlib.metadata.Distribution) -> str:
    """Say why no index has this project; "" if one may have it."""
    # conda writes the folder of its build as the origin, which says nothing about indexes.
    if (project.read_text("INSTALLER") or "").strip() == "conda":
        return ""
    origin = json.loads(project.read_text("direct_url.json") or "{}")
    if (origin.get("dir_info") or {}).get("editable"):
        return "is editable: clusterfn sends it as source, unless it is compiled"
    if "vcs_info" in origin or "dir_info" in origin:
        return f"was installed from {origin['url']}, which a lock cannot name: it is skipped"
    return ""
