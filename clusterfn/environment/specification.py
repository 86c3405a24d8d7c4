"""What a user wants in an environment, as one value; and the shortest way to write it, `packages=[…]`.

    packages=["python=3.11", "torch==2.7.1", "numpy>=2"]    from conda-forge
    "bioconda::samtools"                                    from a channel that is named
    "pip:torch-geometric"                                   from PyPI, or the index that pip is configured for

torch, torchvision and torchaudio come from PyPI, as wheels: PyTorch itself makes builds for each CUDA, and none for
conda any longer; "conda-forge::pytorch" is conda-forge's. Pure, no I/O. `environmentyml` reads the same from a file,
`imports` from what a function imports; `solving` makes a lock of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterfn.errors import ConfigError

USUAL_CHANNEL = "conda-forge"
TORCHES = ("torch", "torchvision", "torchaudio")
_PIP = "pip:"
_CONDA = re.compile(r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<rest>(?:[\s=<>!~\[].*)?)")
_WHEEL = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w\s,.-]*\])?\s*(?P<rest>(?:[=<>!~@;(].*)?)")
_SOURCE = re.compile(r"(?:git|hg|svn|bzr)\+|[\w.-]+\s*@\s*(?:git|hg|svn|bzr)\+")
_FORMAT = 1


@dataclass(frozen=True)
class Requirement:
    """One package that is wanted.

    Attributes:
        name: In small letters.
        text: As the solver wants it: "numpy >=2", "conda-forge::pytorch", "torch==2.7.1".
        place: Where it stands, "environment.yml:7"; "" for an argument.
        selector: Of conda-lock, from a comment behind it: "linux".
    """

    name: str
    text: str
    place: str = ""
    selector: str = ""


@dataclass(frozen=True)
class Specification:
    """What an environment is to have.

    Attributes:
        title: For messages: "environment.yml", 'packages=["numpy"]'.
        conda: From the channels.
        pip: From the indexes.
        indexes: Named besides those that pip is configured for.
        find_links: Folders and pages with wheels, besides those that pip is configured for.
        platforms: To be locked besides the host's own.
        file: Where it was read from; the lock stands beside it.
        given_lock: The lock itself was named: nothing is to be solved.
        exported: It is an export of a whole environment.
        sentences: What was understood in another way than it was written, to be said aloud when it is solved.
        wish: The hash of what the user wrote, where versions were pinned since for one host; "" where they were not.
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

    @property
    def wants_python(self) -> bool:
        """Whether it says which Python; else the caller's minor is added."""
        return any(each.name == "python" for each in self.conda)

    @property
    def input_hash(self) -> str:
        """The same for the same wishes, however they are written or ordered. Platforms that were added do not count."""
        if self.wish:
            return self.wish
        content = {
            "format": _FORMAT,
            "channels": self.channels,
            "conda": sorted((each.text, each.selector) for each in self.conda),
            "pip": sorted((each.text, each.selector) for each in self.pip),
            "indexes": self.indexes,
            "find_links": self.find_links,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def wheel(self, name: str) -> Requirement | None:
        """What is wanted of a project from the indexes, such as torch; None if it is not named."""
        return next((each for each in self.pip if each.name == name), None)

    def with_wheels(self, pins: Mapping[str, str], indexes: Sequence[str] = ()) -> Specification:
        """The same with other versions of some projects, and indexes that are asked first.

        Example:
            >>> spec = from_packages(["torch==2.7.1"])
            >>> spec.with_wheels({"torch": "==2.7.1+cu118"}, ["https://download.pytorch.org/whl/cu118"]).pip[0].text
            'torch==2.7.1+cu118'
        """
        pip = tuple(replace(each, text=each.name + pins[each.name]) if each.name in pins else each for each in self.pip)
        return replace(self, pip=pip, indexes=(*indexes, *self.indexes), wish=self.input_hash)


def from_packages(packages: Sequence[str]) -> Specification:
    """The specification that `packages=` means.

    Raises:
        ConfigError: One of them is not understood.

    Example:
        >>> from_packages(["numpy>=2", "pip:rich"]).conda[0].text
        'numpy >=2'
    """
    title = f"packages={json.dumps(list(packages))}"
    conda, pip, sentences = [], [], []
    for text in packages:
        if text.startswith(_PIP):
            pip.append(wheel_requirement(text[len(_PIP) :]))
            continue
        found = conda_requirement(text)
        if found.name in TORCHES and "::" not in text:
            pip.append(wheel_requirement(_as_wheel(text)))
            sentences.append(f"{found.name} comes from PyPI, as a wheel (conda-forge's is {USUAL_CHANNEL}::pytorch)")
        else:
            conda.append(found)
    named = named_channels(conda)
    channels = named if conda and len(named) == len(conda) else [USUAL_CHANNEL, *named]
    return Specification(
        title, tuple(dict.fromkeys(channels)), tuple(conda), tuple(pip), sentences=tuple(sentences[:1])
    )


def named_channels(conda: Sequence[Requirement]) -> list[str]:
    """The channels that stand before packages."""
    return [each.text.partition("::")[0] for each in conda if "::" in each.text]


def conda_requirement(text: str, place: str = "", selector: str = "") -> Requirement:
    """A package of conda's: name, version and build, with a channel before it or not.

    Raises:
        ConfigError: It is none.
    """
    match = _CONDA.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{_at(place)}{text!r} names no package of conda",
            hint='write "numpy>=2", "python=3.11", "channel::package", or "pip:package"',
        )
    channel, name, rest = match["channel"], match["name"].lower(), match["rest"].strip()
    spaced = f"{name}{rest}" if rest.startswith(("=", "[")) and not rest.startswith("==") else f"{name} {rest}".strip()
    return Requirement(name, f"{channel}::{spaced}" if channel else spaced, place, selector)


def wheel_requirement(text: str, place: str = "", selector: str = "") -> Requirement:
    """A project of an index, as pip writes it.

    Raises:
        ConfigError: It is none, or can be locked to no wheel.
    """
    text = text.strip()
    if _SOURCE.match(text):
        raise ConfigError(
            f"{_at(place)}{text!r} is a repository: it can be locked to no wheel",
            hint="install it here as editable (it then travels as source), or name a released version",
        )
    match = _WHEEL.fullmatch(text)
    if match is None or (match["rest"].startswith("@") and "#sha256=" not in text):
        raise ConfigError(
            f"{_at(place)}{text!r} names no project of a package index",
            hint='write "name==1.2", or "name @ https://…/name-1.2-py3-none-any.whl#sha256=…"',
        )
    return Requirement(re.sub(r"[-_.]+", "-", match["name"]).lower(), text, place, selector)


def _as_wheel(text: str) -> str:
    """conda's `torch=2.7` as pip writes it: `torch==2.7.*`."""
    single = re.fullmatch(r"([\w.-]+)\s*=\s*([\d.]+?)(\.?\*)?", text.strip())
    return f"{single[1]}=={single[2]}.*" if single else text.replace(" ", "")


def _at(place: str) -> str:
    return f"{place}: " if place else ""
