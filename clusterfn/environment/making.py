"""From what a call names to an environment that can be made on a host: its specification, the cards, the lock.

Reads files here and starts the solver where a lock is missing; asks no host, the facts are given to it. Called by
`session`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterfn import layout
from clusterfn.config import places
from clusterfn.environment import cuda, environmentyml, solving
from clusterfn.environment.cuda import Cards
from clusterfn.environment.lock import Lock
from clusterfn.environment.solving import Target
from clusterfn.environment.specification import TORCHES, Specification, from_packages
from clusterfn.errors import ConfigError
from clusterfn.spec import Building, Host, Interpreter

Say = Callable[[str], None]

ID_DIGITS = 20

_PLATFORMS = {"linux-x86_64": "linux-64", "linux-aarch64": "linux-aarch64", "linux-ppc64le": "linux-ppc64le"}
_EXACT = re.compile(r"==\s*(\d+(?:\.\d+)+)")
# Without a word about the cards: what the oldest driver of CUDA 12 runs, which most machines have.
_UNKNOWN = Cards("525.60.13", (), "nobody knows yet: the first job on a card will tell")


@dataclass(frozen=True)
class Made:
    """An environment that a lock describes, on one host.

    Attributes:
        title: As the user named it.
        platform: conda's word for the host's kind.
        root: The folder below which environments lie there, absolute.
        why: What decided its build of PyTorch, if that was asked.
    """

    title: str
    lock: Lock
    platform: str
    root: str
    host: Host
    cuda: str = ""
    why: str = ""

    @property
    def id(self) -> str:
        """Its name on every host; short, for a script's first line may not have more than 127 bytes."""
        return self.lock.id(self.platform)[:ID_DIGITS]

    @property
    def prefix(self) -> str:
        """Where it lies on this host."""
        return layout.environment_dir(self.root, self.id)

    @property
    def ready(self) -> str:
        """The file that is there once it is whole."""
        return posixpath.join(self.prefix, layout.READY)

    @property
    def interpreter(self) -> Interpreter:
        """Its Python, known before it is there."""
        path = posixpath.join(self.prefix, "bin", "python")
        named = {"CONDA_PREFIX": self.prefix, "CONDA_DEFAULT_ENV": self._short_name}
        activation = {"prepend": {"PATH": [posixpath.dirname(path)]}, "set": named, "unset": []}
        return Interpreter(path, self.lock.python(self.platform), activation)

    @property
    def _short_name(self) -> str:
        name = Path(self.lock.path.name.partition(".conda-lock")[0]).stem
        return f"{name}-{self.id[:8]}"

    @property
    def building(self) -> Building:
        """What a job says of it."""
        making = self.host.making
        return Building(self.id, self.root, making.purge_days is not None, self.cuda)


def specification(text: str | None, packages: Sequence[str]) -> Specification:
    """What a call wants to have made.

    Raises:
        ConfigError: Both are given, or neither is understood, or the file is missing.
    """
    if packages and text:
        raise ConfigError(
            f"environment={text!r} and packages= are both given", hint="add the packages to the file, or leave one out"
        )
    if packages:
        return from_packages(packages)
    if not text or not environmentyml.names_a_file(text):
        raise ConfigError(
            f"environment={text!r} names no environment",
            hint='name one that is on the host ("python:/path", "venv:~/v", "prefix:/path", "conda:name"), a file from '
            'which it is made ("environment.yml"), or packages=["python=3.11", "numpy"]',
        )
    return environmentyml.from_file(environmentyml.located(text, _folders()))


def _folders() -> list[Path]:
    """Where a relative path begins: here, else beside the running script."""
    script = places.running_script()
    return [Path.cwd(), *([script.parent] if script else [])]


def stamp(spec: Specification) -> str:
    """What changes when the specification, or a lock beside it, does."""
    files = [path for path in (spec.given_lock, spec.file and _lock_beside(spec.file)) if path]
    times = [f"{path}:{path.stat().st_mtime_ns}" for path in files if path.exists()]
    return "|".join([spec.title, spec.input_hash, *times])


def _lock_beside(file: Path) -> Path:
    return file.with_name(f"{file.stem}.conda-lock.yml")


def make(
    spec: Specification, host: Host, facts: Mapping[str, str], cards: Cards | None, caller: tuple[int, int], say: Say
) -> Made:
    """The environment of a specification on a host.

    Args:
        facts: Of the host: platform, glibc, root (where environments lie), absolute.
        cards: What the job's cards are; None if it asks for none.
        caller: The caller's (major, minor).

    Raises:
        LockError: It cannot be solved.
        EnvironmentBuildError: No build of PyTorch runs on these cards.
        ConfigError: The host is of no kind for which packages are made.
    """
    platform = _platform(host, facts["platform"])
    choice = None
    if cards is not None:
        spec, choice = _with_torch(spec, cards, host)
        for sentence in [choice.because, *choice.warnings] if choice else []:
            say(sentence)
    newest = cuda.newest(cards.driver) if cards is not None else None
    target = Target(platform, facts["glibc"], newest, f"{caller[0]}.{caller[1]}")
    lock = solving.lock_for(spec, target, say)
    return Made(
        spec.title, lock, platform, facts["root"], host, choice.cuda if choice else "", choice.because if choice else ""
    )


def _platform(host: Host, told: str) -> str:
    if told not in _PLATFORMS:
        raise ConfigError(
            f"environments are made for {', '.join(_PLATFORMS)}, and {host.name} is {told}", host=host.name,
            hint='name one that is there: environment="python:/path", "venv:…", "prefix:…" or "conda:…"',
        )  # fmt: skip
    return _PLATFORMS[told]


def _with_torch(spec: Specification, cards: Cards, host: Host) -> tuple[Specification, cuda.Choice | None]:
    """The specification with PyTorch's wheels pinned to a build for these cards; a lock that is given stays."""
    torch = spec.wheel("torch")
    if torch is None or spec.given_lock:
        return spec, None
    exact = _EXACT.search(torch.text)
    table = cuda.table(Path(host.making.table)) if host.making.table else None
    choice = cuda.choose(cards, exact[1] if exact else None, table, host.name)
    pins = {} if exact else {"torch": f"=={choice.torch}.*"}
    if exact and choice.index:
        pins["torch"] = f"=={exact[1]}+{choice.index.rpartition('/')[2]}"
    belong = cuda.companions(choice.torch, table)
    pins |= {name: f"=={version}" for name, version in belong.items() if _is_free(spec, name)}
    return spec.with_wheels(pins, [choice.index] if choice.index else []), choice


def _is_free(spec: Specification, name: str) -> bool:
    """Whether one of PyTorch's companions is wanted, in whatever version belongs to it."""
    found = spec.wheel(name)
    return name in TORCHES and found is not None and found.text == name


def unknown_cards(host: Host) -> Cards:
    """What is taken where nobody has seen the cards."""
    making = host.making
    if making.driver:
        return Cards(making.driver, making.capabilities, f"clusterfn.yml says ({host.source})")
    return _UNKNOWN
