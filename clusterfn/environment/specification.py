"""What a user wants in an environment, as one value.

Pure, no I/O. `environment_files` reads it from a file, `packages` from `packages=[…]` or from what a function imports;
`solver` makes a lock of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from clusterfn.bridge.builder.plan import masked
from clusterfn.environment.project import PIP_LINES, ProjectFile, normalize
from clusterfn.environment.python_source import PythonSource
from clusterfn.errors import ConfigError

USUAL_CHANNEL = "conda-forge"
TORCHES = ("torch", "torchvision", "torchaudio")
_CONDA = re.compile(r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<rest>(?:[\s=<>!~\[].*)?)")
_WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>(?:\s*\[[\w\s,.-]*\])?)\s*(?P<rest>(?:[=<>!~@;(].*)?)"
)
# conda's builders work in folders of many names, /croot/numpy_1682520569166/work; the time and "work" are in all.
_BUILT_BY_CONDA = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*@\s*file:///\S*_\d{10,}/work(?:/|\s|$)")
# Lines of `conda list --export` and `conda list --explicit`, and conda's way to name a channel or a version.
_OF_CONDA = re.compile(
    r"@EXPLICIT|[\w.-]+\s*(?:\[[^\]]*\])?\s*=\s*[^=\s]+(?:=\S+)?|[\w./-]+::\S+|"
    r"\S+/(?:noarch|(?:linux|osx|win)-\w+)/\S+\.(?:conda|tar\.bz2)(?:#\w+)?"
)
# The brackets of a conda package hold name=value, so these are extras.
WITH_EXTRAS = re.compile(r"[\w.-]+\s*\[[\w\s,.-]+\]")
_ADDRESS = re.compile(r"@\s*\w+://")
# The "git+" before the address of a repository is no part of it.
_URL = re.compile(r"\b[a-z]+://\S+")
_FORMAT = 1


@dataclass(frozen=True)
class Requirement:
    """A wanted package: its name in lower case, and its text for the solver, as in "conda-forge::pytorch"."""

    name: str
    text: str

    @property
    def versions(self) -> str:
        """The versions of a wheel that are wanted, as pip writes them: ">=2.4,<2.8"."""
        return "" if self.is_address else re.sub(r"[\s()]", "", self._rest.partition(";")[0])

    @property
    def channel(self) -> str:
        """The channel that is named before a package of conda's; "" if none is."""
        return self.text.partition("::")[0] if "::" in self.text else ""

    @property
    def is_address(self) -> bool:
        """Whether it names one wheel by its address."""
        return self._rest.startswith("@")

    @property
    def _rest(self) -> str:
        found = _WHEEL.fullmatch(self.text)
        return found["rest"] if found else ""


@dataclass(frozen=True)
class Specification:
    """What an environment is to have.

    Attributes:
        title: For messages: "environment.yml", 'packages=["numpy"]'.
        conda: From the channels.
        pip: From the indexes.
        indexes: Package indexes that are named, asked before those that uv is configured for.
        replaces_index: One of them is named by --index-url: PyPI is not asked.
        file: The file that it was read from; its lock is next to it.
        given_lock: The lock itself was named: nothing is to be solved.
        exported: It is an export of a whole environment.
        sentences: What was understood otherwise than written; shown to the user when it is solved.
        wish: All that decides about the wheels, as text; "" if none is wanted.
        wheels: What uv reads for its wheels, a project's own file or lines of pip; then `pip` only has what decides
            something before. None if no wheel is wanted.
        pins: Versions that were chosen for one host, as pip writes them.
        torch_backend: PyTorch's own index that was chosen for one host, "cu128"; "" for none.
        python: Where the Python of a project comes from; its own lock says so, `input_hash` does not.
    """

    title: str
    channels: tuple[str, ...] = ()
    conda: tuple[Requirement, ...] = ()
    pip: tuple[Requirement, ...] = ()
    indexes: tuple[str, ...] = ()
    file: Path | None = None
    given_lock: Path | None = None
    exported: bool = False
    sentences: tuple[str, ...] = ()
    wish: str = ""
    replaces_index: bool = False
    wheels: ProjectFile | None = None
    pins: tuple[str, ...] = ()
    torch_backend: str = ""
    python: PythonSource = PythonSource()

    @property
    def project(self) -> ProjectFile | None:
        """The project's own file, which leaves open where Python comes from; None if it has none."""
        return self.wheels if self.wheels and self.wheels.kind != PIP_LINES else None

    @property
    def wants_python(self) -> bool:
        """Whether it names a Python; else the minor version of the caller is added."""
        return any(requirement.name == "python" for requirement in self.conda)

    @property
    def input_hash(self) -> str:
        """A hash of what is wanted, not of how it is written or ordered."""
        # The empty text was a platform once: without it all locks would be out of date.
        conda = [self.channels, sorted((requirement.text, "") for requirement in self.conda)]
        content = [_FORMAT, self.wish, conda]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def addresses(self) -> tuple[tuple[str, str], ...]:
        """What it names by an address, which may have the user's credentials: indexes with a name, all else without."""
        packages = [_URL.search(requirement.text) for requirement in self.pip]
        lines = [text.partition(" ") for text in (self.wheels.lines if self.wheels else ())]
        pages = [value for option, _, value in lines if option in ("-f", "--find-links")]
        named = [*self.indexes, *pages, *(found[0] for found in packages if found)]
        return (*(self.project.indexes if self.project else ()), *(("", url) for url in named))

    @property
    def is_locked(self) -> bool:
        """Whether the user gave a lock, ours or uv's: no version is chosen."""
        return self.given_lock is not None or (self.wheels is not None and self.wheels.is_locked)

    def wheel(self, name: str) -> Requirement | None:
        """Return what is wanted of a project from the indexes, such as torch; None if it is not named."""
        return next((requirement for requirement in self.pip if requirement.name == name), None)


def conda_requirement(text: str, place: str = "") -> Requirement:
    """Parse a package of conda's: name, version and build, with or without a channel; raise ConfigError else."""
    match = _CONDA.fullmatch(text.strip())
    if match is None:
        hint = 'write "numpy>=2", "python=3.11", "channel::package", or "pip:package"'
        raise ConfigError(f"{at(place)}{masked(text)!r} is not a conda package", hint=hint)
    channel, name, rest = match["channel"], match["name"].lower(), match["rest"].strip()
    spaced = f"{name}{rest}" if rest.startswith(("=", "[")) and not rest.startswith("==") else f"{name} {rest}".strip()
    return Requirement(name, f"{channel}::{spaced}" if channel else spaced)


def wheel_requirement(text: str, place: str = "") -> Requirement:
    """Parse a project of an index, as pip writes it; raise ConfigError if it is none, or can be locked to no wheel."""
    text = text.strip()
    built_there = _BUILT_BY_CONDA.search(text)
    if built_there:
        raise ConfigError(
            f"{at(place)}{text!r} is the folder in which conda built {built_there[1]}: `pip freeze` wrote it in a "
            "conda environment, without a version",
            hint="write such files by `pip list --format=freeze > requirements.txt`, or name a version: "
            f"{built_there[1]}==…",
        )
    match = _WHEEL.fullmatch(text)
    if match is None or ("@" in match["rest"] and not _ADDRESS.match(match["rest"])):
        hint = 'write "name==1.2", or "name @ https://…/name-1.2-py3-none-any.whl"'
        raise ConfigError(f"{at(place)}{masked(text)!r} is not a project of a package index", hint=hint)
    return Requirement(normalize(match["name"]), text)


def refuse_conda(text: str, place: str) -> None:
    """Raise ConfigError for a line of conda's where pip's are expected: uv would take some for addresses of wheels."""
    if _OF_CONDA.fullmatch(text):
        raise ConfigError(
            f"{at(place)}{masked(text)!r} is written as for conda, and only pip's lines are read here",
            hint='write "name==1.2"; or name a file of conda instead: '
            "`conda env export --from-history > environment.yml`",
        )


def at(place: str) -> str:
    """Return how a message begins that is about a place in a file."""
    return f"{place}: " if place else ""
