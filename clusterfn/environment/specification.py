"""What a user wants in an environment, as one value.

Pure, no I/O. `environment_yml` reads it from a file, `packages` from `packages=[…]`, `imports` from what a function
imports, `project_files` from what uv and pip know; `solver` makes a lock of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterfn.bridge.builder.fetch import masked
from clusterfn.environment.project import PIP_LINES, ProjectFile
from clusterfn.environment.python_source import PythonSource
from clusterfn.errors import ConfigError

USUAL_CHANNEL = "conda-forge"
TORCHES = ("torch", "torchvision", "torchaudio")
_CONDA = re.compile(r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<rest>(?:[\s=<>!~\[].*)?)")
_WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>(?:\[[\w\s,.-]*\])?)\s*(?P<rest>(?:[=<>!~@;(].*)?)"
)
_CLAUSE = re.compile(r"(?P<operator>~=|===?|!=|<=|>=|<|>)?\s*(?P<version>\d[\w.*+!-]*)")
_PATCHES = 30  # no minor version of PyTorch has had as many
# conda's builders work in folders of many names, /croot/numpy_1682520569166/work; the time and "work" are in all.
_BUILT_BY_CONDA = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*@\s*file:///\S*_\d{10,}/work(?:/|\s|$)")
_ADDRESS = re.compile(r"@\s*\w+://")
_FORMAT = 1


@dataclass(frozen=True)
class Requirement:
    """One package that is wanted.

    Attributes:
        name: In lower case.
        text: As the solver wants it: "numpy >=2", "conda-forge::pytorch", "torch==2.7.1".
        place: Its file and line, "environment.yml:7"; "" for an argument.
        selector: Of conda-lock, from a comment behind it: "linux".
    """

    name: str
    text: str
    place: str = ""
    selector: str = ""

    @property
    def is_address(self) -> bool:
        """Whether it names one wheel by its address."""
        return self._rest.startswith("@")

    @property
    def has_extras(self) -> bool:
        """Whether extras of a wheel are wanted."""
        found = _WHEEL.fullmatch(self.text)
        return bool(found and found["extras"].strip("[] "))

    @property
    def versions(self) -> str:
        """The versions of a wheel that are wanted, as pip writes them.

        Example:
            >>> wheel_requirement("torch[opt] (>=2.4, <2.8); python_version > '3.9'").versions
            '>=2.4,<2.8'
        """
        return "" if self.is_address else re.sub(r"[\s()]", "", self._rest.partition(";")[0])

    @property
    def exact(self) -> str:
        """The one version of a wheel that is wanted, "2.7.1"; "" if several would do."""
        clause = _CLAUSE.fullmatch(self.versions)
        single = clause is not None and clause["operator"] in ("==", "===") and "*" not in clause["version"]
        return clause["version"] if clause and single else ""

    def with_versions(self, versions: str) -> Requirement:
        """Return the same wheel in other versions; its extras and its marker stay.

        Example:
            >>> wheel_requirement("torch[opt]>=2; sys_platform == 'linux'").with_versions("==2.7.1").text
            "torch[opt]==2.7.1; sys_platform == 'linux'"
        """
        _, separator, marker = self._rest.partition(";")
        found = _WHEEL.fullmatch(self.text)
        extras = found["extras"] if found else ""
        return replace(self, text=f"{self.name}{extras}{versions}{separator}{marker}")

    @property
    def _rest(self) -> str:
        found = _WHEEL.fullmatch(self.text)
        return found["rest"] if found else ""


def admits(versions: str, minor: tuple[int, ...]) -> bool:
    """Return whether pip would accept some release of a minor version; a version alone means exactly that one.

    Example:
        >>> [minor for minor in range(10) if admits(">=2.4,<2.8,!=2.5.*", (2, minor))]
        [4, 6, 7]
    """
    return any(admits_release(versions, (*minor[:2], patch)) for patch in range(_PATCHES))


def admits_release(versions: str, release: tuple[int, ...]) -> bool:
    """Return whether pip would accept one release, (3, 11, 4).

    Example:
        >>> admits_release(">=3.11.5", (3, 11, 4)), admits_release("~=3.11.2", (3, 11, 4))
        (False, True)
    """
    clauses = [_CLAUSE.fullmatch(clause.strip()) for clause in versions.split(",") if clause.strip()]
    return all(_holds(clause, release) for clause in clauses if clause)


def _holds(clause: re.Match[str], release: tuple[int, ...]) -> bool:
    operator, text = clause["operator"] or "==", clause["version"].partition("+")[0]
    numbers = tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", text)[0]))
    whole = (*numbers, 0, 0, 0)[: max(len(numbers), 3)]
    if operator in ("==", "===", "!="):
        same = release[: len(numbers)] == numbers if text.endswith("*") else release == whole
        return same is not (operator == "!=")
    if operator == "~=":
        return release >= whole and release[: len(numbers) - 1] == numbers[:-1]
    return {"<": release < whole, "<=": release <= whole, ">": release > whole, ">=": release >= whole}[operator]


@dataclass(frozen=True)
class Specification:
    """What an environment is to have.

    Attributes:
        title: For messages: "environment.yml", 'packages=["numpy"]'.
        conda: From the channels.
        pip: From the indexes.
        indexes: Package indexes that are named, asked before those that pip is configured for.
        replaces_index: One of them is named by --index-url: pip's own index is not asked, as pip itself would do.
        find_links: Folders and pages with wheels, in addition to those that pip is configured for.
        platforms: To be locked in addition to the host's own.
        file: The file that it was read from; its lock is next to it.
        given_lock: The lock itself was named: nothing is to be solved.
        exported: It is an export of a whole environment.
        sentences: What was understood otherwise than written; shown to the user when it is solved.
        wish: The hash of what the user wrote, if versions were pinned for one host since, or if it is a project's
            own file; else "".
        project: The file that uv reads for its wheels; then `pip` only has what it names itself.
        pins: Versions that were chosen for one host, as pip writes them.
        chosen_indexes: Indexes that were chosen for one host; they are the first of `indexes`, too.
        python: Where the Python of a project comes from; its own lock says so, `input_hash` does not.
        pip_section: The lines of `pip:` as uv reads them; None if there are none.
        more_wishes: What these lines mean beyond `pip`: other files, local packages; "" for nothing.
    """

    title: str
    channels: tuple[str, ...] = ()
    conda: tuple[Requirement, ...] = ()
    pip: tuple[Requirement, ...] = ()
    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    file: Path | None = None
    given_lock: Path | None = None
    exported: bool = False
    sentences: tuple[str, ...] = ()
    wish: str = ""
    replaces_index: bool = False
    project: ProjectFile | None = None
    pins: tuple[str, ...] = ()
    chosen_indexes: tuple[str, ...] = ()
    python: PythonSource = PythonSource()
    pip_section: ProjectFile | None = None
    more_wishes: str = ""

    @property
    def wants_python(self) -> bool:
        """Whether it names a Python; else the minor version of the caller is added."""
        return any(each.name == "python" for each in self.conda)

    @property
    def input_hash(self) -> str:
        """A hash of what is wanted, not of how it is written or ordered, nor of platforms that were added."""
        if self.wish:
            return self.wish
        content = {
            "format": _FORMAT,
            "channels": self.channels,
            "conda": sorted((each.text, each.selector) for each in self.conda),
            "pip": sorted((each.text, each.selector) for each in self.pip),
            "indexes": self.indexes,
            "find_links": self.find_links,
            **({"replaces_index": True} if self.replaces_index else {}),
            **({"more": self.more_wishes} if self.more_wishes else {}),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def pip_lines(self) -> ProjectFile | None:
        """What uv reads in addition to conda's packages; None if there is nothing."""
        if self.pip_section or not self.pip or self.project:
            return self.pip_section
        lines = tuple((each.text, each.selector) for each in self.pip)
        return ProjectFile(PIP_LINES, (self.file or Path.cwd() / "packages"), lines=lines)

    @property
    def is_locked(self) -> bool:
        """Whether the user gave a lock, ours or uv's: no version is chosen."""
        return self.given_lock is not None or (self.project is not None and self.project.is_locked)

    def wheel(self, name: str) -> Requirement | None:
        """Return what is wanted of a project from the indexes, such as torch; None if it is not named."""
        return next((each for each in self.pip if each.name == name), None)

    def with_wheels(self, pins: Mapping[str, str], indexes: Sequence[str] = ()) -> Specification:
        """Return a specification with other versions of some projects, and indexes that are asked first.

        Example:
            >>> spec = Specification("", pip=(wheel_requirement("torch==2.7.1"),))
            >>> spec.with_wheels({"torch": "==2.7.1+cu118"}, ["https://download.pytorch.org/whl/cu118"]).pip[0].text
            'torch==2.7.1+cu118'
        """
        pip = tuple(each.with_versions(pins[each.name]) if each.name in pins else each for each in self.pip)
        return replace(
            self, pip=pip, indexes=(*indexes, *self.indexes), wish=self.input_hash,
            pins=tuple(f"{name}{versions}" for name, versions in pins.items()), chosen_indexes=tuple(indexes),
        )  # fmt: skip


def named_channels(conda: Sequence[Requirement]) -> list[str]:
    """List the channels that are named before packages."""
    return [each.text.partition("::")[0] for each in conda if "::" in each.text]


def conda_requirement(text: str, place: str = "", selector: str = "") -> Requirement:
    """Parse a package of conda's: name, version and build, optionally with a channel before it.

    Raises:
        ConfigError: It is none.
    """
    match = _CONDA.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{_at(place)}{text!r} is not a conda package",
            hint='write "numpy>=2", "python=3.11", "channel::package", or "pip:package"',
        )
    channel, name, rest = match["channel"], match["name"].lower(), match["rest"].strip()
    spaced = f"{name}{rest}" if rest.startswith(("=", "[")) and not rest.startswith("==") else f"{name} {rest}".strip()
    return Requirement(name, f"{channel}::{spaced}" if channel else spaced, place, selector)


def wheel_requirement(text: str, place: str = "", selector: str = "") -> Requirement:
    """Parse a project of an index, as pip writes it.

    Raises:
        ConfigError: It is none, or can be locked to no wheel.
    """
    text = text.strip()
    built_there = _BUILT_BY_CONDA.search(text)
    if built_there:
        raise ConfigError(
            f"{_at(place)}{text!r} is the folder in which conda built {built_there[1]}: `pip freeze` wrote it in a "
            "conda environment, without a version",
            hint="write such files by `pip list --format=freeze > requirements.txt`, or name a version: "
            f"{built_there[1]}==…",
        )
    match = _WHEEL.fullmatch(text)
    if match is None or ("@" in match["rest"] and not _ADDRESS.match(match["rest"])):
        raise ConfigError(
            f"{_at(place)}{masked(text)!r} is not a project of a package index",
            hint='write "name==1.2", or "name @ https://…/name-1.2-py3-none-any.whl"',
        )
    return Requirement(re.sub(r"[-_.]+", "-", match["name"]).lower(), text, place, selector)


def _at(place: str) -> str:
    return f"{place}: " if place else ""
