"""From what a call names to an environment that can be made on a host: its specification, the cards, the lock.

Reads files here and starts the solver where a lock is missing; asks no host, the facts are given to it.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterfn.bridge import layout
from clusterfn.bridge.builder.fetch import masked
from clusterfn.config import advice, places
from clusterfn.config.spec import Building, Host, Interpreter
from clusterfn.environment import cuda, environmentyml, solving
from clusterfn.environment import lock as locks
from clusterfn.environment.cuda import Cards
from clusterfn.environment.lock import Lock, Package
from clusterfn.environment.solve import condarc
from clusterfn.environment.solving import Target
from clusterfn.environment.specification import TORCHES, USUAL_CHANNEL, Requirement, Specification, from_packages
from clusterfn.errors import ConfigError, EnvironmentBuildError

Say = Callable[[str], None]

ID_DIGITS = 20
_NODE_DISK = "/var/tmp"  # a folder of the user's is made there by the builder, and checked

_PLATFORMS = {"linux-x86_64": "linux-64", "linux-aarch64": "linux-aarch64", "linux-ppc64le": "linux-ppc64le"}
_CONDA_BUILD = re.compile(r"cuda_?(\d\d)\.?(\d)")  # cuda128_…, py3.11_cuda12.1_…
_OF_INDEX = re.compile(r"/(cu\d{2,3}|cpu)/?$")  # https://download.pytorch.org/whl/cu118, or a mirror of it
# Without a word about the cards: what the oldest driver of CUDA 12 runs, which most machines have.
_UNKNOWN = Cards("525.60.13", (), "is taken where nobody has seen them: the first job on a card will tell")


@dataclass(frozen=True)
class Made:
    """An environment that a lock describes, on one host.

    Attributes:
        title: As the user named it.
        platform: conda's word for the host's kind.
        root: The folder below which environments lie there, absolute.
        why: What decided its build of PyTorch, if that was asked.
        wanted: Names of the packages that were asked for.
        uid: The user's there.
        on_cards: Whether its PyTorch must show that it runs on the job's cards.
    """

    title: str
    lock: Lock
    platform: str
    root: str
    host: Host
    cuda: str = ""
    why: str = ""
    wanted: tuple[str, ...] = ()
    uid: int = 0
    on_cards: bool = False

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
    def has_torch(self) -> bool:
        """Whether PyTorch is among its packages, of whatever build."""
        return torch_of(self.lock.on(self.platform), cuda.table()) is not None

    @property
    def node_root(self) -> str:
        """The folder on each node's own disk into which it is unpacked; "" if it runs where it was made."""
        at = self.host.making.at
        return "" if at == "root" else posixpath.join(_NODE_DISK if at == "node" else at, f"clusterfn-{self.uid}")

    @property
    def interpreter(self) -> Interpreter:
        """Its Python, known before it is there."""
        prefix = layout.environment_dir(self.node_root, self.id) if self.node_root else self.prefix
        path = posixpath.join(prefix, "bin", "python")
        named = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": self._short_name}
        activation = {"prepend": {"PATH": [posixpath.dirname(path)]}, "set": named, "unset": []}
        return Interpreter(path, self.lock.python(self.platform), activation)

    @property
    def _short_name(self) -> str:
        name = Path(self.lock.path.name.partition(".conda-lock")[0]).stem
        return f"{name}-{self.id[:8]}"

    @property
    def building(self) -> Building:
        """What a job says of it."""
        making, build = self.host.making, self.cuda or ("unknown" if self.on_cards else "")
        return Building(self.id, self.root, making.purge_days is not None, build, self.node_root, self.host.owners)


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
        return with_own_channels(from_packages(packages))
    if not text or not advice.names_a_file(text):
        raise ConfigError(
            f"environment={text!r} names no environment",
            hint='name one that is on the host ("python:/path", "venv:~/v", "prefix:/path", "conda:name"), a file from '
            'which it is made ("environment.yml"), or packages=["python=3.11", "numpy"]',
        )
    return environmentyml.from_file(environmentyml.located(text, _folders()))


def with_own_channels(spec: Specification) -> Specification:
    """With the channels of the user's .condarc, if it names some, in place of the usual one."""
    own = condarc.channels(condarc.settings())
    if not own or USUAL_CHANNEL not in spec.channels:
        return spec
    others = (each for each in spec.channels if each != USUAL_CHANNEL)
    return replace(spec, channels=tuple(dict.fromkeys([*own, *others])))


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
        facts: Of the host: platform, glibc, root (where environments lie), absolute, and the user's uid.
        cards: What the job's cards are; None if it asks for none.
        caller: The caller's (major, minor).

    Raises:
        LockError: It cannot be solved.
        EnvironmentBuildError: No build of PyTorch runs on these cards.
        ConfigError: The host is of no kind for which packages are made.
    """
    target = _target(host, facts, cards, caller)
    wanted = tuple(each.name for each in (*spec.conda, *spec.pip))
    made = functools.partial(
        Made, platform=target.platform, root=facts["root"], host=host, wanted=wanted, uid=int(facts["uid"])
    )
    if cards is None:
        return made(spec.title, solving.lock_for(spec, target, say))
    table = _table(host)
    lock, choice = _lock_with_torch(spec, target, cards, table, host, say)
    torch = torch_of(lock.on(target.platform), table)
    _refuse_torch(torch, cards, table, lock, host)
    because = ""
    if torch:  # of the lock, which may have another build than the one that was looked for
        as_chosen = choice is not None and torch.cuda == choice.cuda
        because = choice.because if choice and as_chosen else _why_it_runs(torch, cards, table)
        if choice and not as_chosen:
            say(because)
    if cards is _UNKNOWN and torch:
        say(because)
    built_for = torch.cuda or "" if torch else ""
    return made(spec.title, lock, cuda=built_for, why=because, on_cards=torch is not None)


def stale(
    spec: Specification, host: Host, facts: Mapping[str, str], cards: Cards | None, caller: tuple[int, int]
) -> str:
    """Why `make` would solve anew, or could not use the lock that was given; "" if the lock that is there does.

    Raises:
        LockError: What is there cannot be read.
    """
    target = _target(host, facts, cards, caller)
    path = solving.lock_path(spec, target)
    if not path.exists():
        return f"{path.name} does not exist"
    lock, table = locks.read(path), _table(host)
    torch = torch_of(lock.on(target.platform), table)
    why_not = solving.why_not(lock, spec, target)
    if why_not or cards is None or torch is None or _runs(torch, cards, table):
        return why_not
    return f"its PyTorch {torch.version} for CUDA {torch.cuda or 'none'} does not run on the cards of {host.name}"


def _target(host: Host, facts: Mapping[str, str], cards: Cards | None, caller: tuple[int, int]) -> Target:
    newest = cuda.newest(cards.driver) if cards is not None else None
    return Target(_platform(host, facts["platform"]), facts["glibc"], newest, f"{caller[0]}.{caller[1]}")


def _why_it_runs(torch: Torch, cards: Cards, table: cuda.Table) -> str:
    """Of a lock that was there already."""
    least = table.least_driver(torch.cuda or "")
    needs = f" (at least {least})" if least else ""
    cards_text = f", compute capability {', '.join(cards.capabilities)}" if cards.capabilities else ""
    return (
        f"CUDA {torch.cuda or 'unknown'} of PyTorch {torch.version}, as locked: driver {cards.driver}{needs}"
        f"{cards_text}, as {cards.source}"
    )


def _table(host: Host) -> cuda.Table:
    return cuda.table(Path(host.making.table)) if host.making.table else cuda.table()


def _lock_with_torch(
    spec: Specification, target: Target, cards: Cards, table: cuda.Table, host: Host, say: Say
) -> tuple[Lock, cuda.Choice | None]:
    """The lock that is there, if its PyTorch runs on these GPUs; else one with a build that does, and which."""
    wheel = spec.wheel("torch")
    # What is only supposed of the cards is no reason to solve anew what was solved for some.
    there = solving.current(spec, replace(target, cuda=None) if cards is _UNKNOWN else target)
    if there and (wheel is None or _runs(torch_of(there.on(target.platform), table), cards, table)):
        return there, None
    if wheel is None or spec.given_lock or wheel.is_address:
        return solving.lock_for(spec, target, say), None
    choice = cuda.choose(cards, _wish(spec, wheel, host), table, host.name)
    for sentence in [choice.because, *choice.warnings]:
        say(sentence)
    why = f"its PyTorch does not run there ({choice.because})" if there else ""
    return solving.lock_for(_pinned(spec, wheel, choice, table), target, say, why), choice


def _wish(spec: Specification, wheel: Requirement, host: Host) -> cuda.Wish:
    """What the user wrote about PyTorch: its versions, and the build that its version or an index names."""
    local = wheel.exact.partition("+")[2]
    tag, said_by = next(filter(lambda found: found[0], [(local, wheel.text), _tagged_index(spec)]), ("", ""))
    if tag == "cpu":
        raise EnvironmentBuildError(
            f"{said_by} is a build of PyTorch without CUDA, and the call asks for GPUs", host=host.name,
            stage="environment", hint="leave the cpu out, then clusterfn chooses a build for these GPUs; or call "
            "with gpus=0",
        )  # fmt: skip
    belonging = {each.name: each.versions for each in spec.pip if each.name in TORCHES and each is not wheel}
    if not tag.startswith("cu"):
        return cuda.Wish(wheel.versions, companions=belonging)
    return cuda.Wish(wheel.versions, _dotted(tag[2:]), said_by, belonging)


def _tagged_index(spec: Specification) -> tuple[str, str]:
    """The build that the first such index of the user's is for, and its address; two empty texts if none is."""
    found = ((match[1], masked(url)) for url in spec.indexes if (match := _OF_INDEX.search(url)))
    return next(found, ("", ""))


def _pinned(spec: Specification, wheel: Requirement, choice: cuda.Choice, table: cuda.Table) -> Specification:
    """With PyTorch's wheels narrowed to one build, and those that belong to it, within what the user wrote."""
    users_index, exact = bool(_tagged_index(spec)[0]), wheel.exact
    if not choice.torch or (users_index and spec.replaces_index):
        return spec  # that index has no other build
    pins = {}
    if not exact:
        pins["torch"] = ",".join(filter(None, [wheel.versions, f"=={choice.torch}.*"]))
    elif choice.index and "+" not in exact:
        pins["torch"] = f"=={exact}+{cuda.tag_of(choice.cuda)}"
    belong = cuda.companions(choice.torch, table)
    pins |= {name: f"=={version}" for name, version in belong.items() if _is_free(spec, name)}
    ours = choice.index and not users_index and "+" not in exact  # who names a build names where it is, too
    return spec.with_wheels(pins, [choice.index] if ours else [])


@dataclass(frozen=True)
class Torch:
    """The PyTorch of a lock.

    Attributes:
        cuda: The version of CUDA that it was built for; "" for a build without, None if that is not known.
        manager: "pip", or "conda", whose builds have code for other cards than those of the table.
    """

    version: str
    cuda: str | None
    manager: str = "pip"


def torch_of(packages: Iterable[Package], table: cuda.Table) -> Torch | None:
    """What there is of PyTorch among them, wheel or conda package; None if there is none."""
    for package in packages:
        if package.name == "pytorch" and package.manager == "conda":
            told = _CONDA_BUILD.search(package.build)
            built_for = f"{told[1]}.{told[2]}" if told else "" if "cpu" in package.build else None
            return Torch(package.version, built_for, "conda")
        if package.name == "torch" and package.manager == "pip":
            return Torch(package.version, _of_wheel(package.version, table))
    return None


def _of_wheel(version: str, table: cuda.Table) -> str | None:
    local = version.partition("+")[2]
    if local.startswith("cu"):
        return _dotted(local[2:])
    if local == "cpu":
        return ""
    defaults = [
        row.cuda for row in table.builds if row.has(cuda.version(version)) and row.is_default(cuda.version(version))
    ]
    return defaults[0] if defaults else None


def _dotted(digits: str) -> str:
    """118 -> 11.8, 128 -> 12.8."""
    return f"{digits[:-1]}.{digits[-1]}"


def _runs(torch: Torch | None, cards: Cards, table: cuda.Table) -> bool:
    if torch is None or torch.cuda is None:
        return torch is not None  # not known: the card itself will be asked
    known = replace(cards, capabilities=()) if torch.manager == "conda" else cards
    return bool(torch.cuda) and cuda.fits(torch.version, torch.cuda, known, table)


def _refuse_torch(torch: Torch | None, cards: Cards, table: cuda.Table, lock: Lock, host: Host) -> None:
    """A lock may be older than the wish for cards, or come from another machine."""
    if torch is None or _runs(torch, cards, table):
        return
    would = cuda.choose(cards, torch.version, table, host.name)
    build = f"PyTorch {torch.version} {f'for CUDA {torch.cuda}' if torch.cuda else 'without CUDA'}"
    raise EnvironmentBuildError(
        f"{lock.path.name} has {build}, which does not run on the cards of {host.name}", host=host.name,
        stage="environment",
        evidence=[f"driver {cards.driver}, compute capability {', '.join(cards.capabilities) or 'unknown'}, "
                  f"as {cards.source}"],
        hint=f"CUDA {would.cuda} would run: let the specification ask for such a build (pytorch-gpu, or torch from "
        f"PyPI), and lock it for this host: clusterfn env lock FILE {host.name}",
    )  # fmt: skip


def _platform(host: Host, told: str) -> str:
    if told not in _PLATFORMS:
        raise ConfigError(
            f"environments are made for {', '.join(_PLATFORMS)}, and {host.name} is {told}", host=host.name,
            hint='name one that is there: environment="python:/path", "venv:…", "prefix:…" or "conda:…"',
        )  # fmt: skip
    return _PLATFORMS[told]


def _is_free(spec: Specification, name: str) -> bool:
    """Whether one of PyTorch's companions is wanted, in whatever version belongs to it."""
    found = spec.wheel(name)
    return name in TORCHES and found is not None and not found.versions and not found.is_address


def unknown_cards(host: Host) -> Cards:
    """What is taken where nobody has seen the cards."""
    making = host.making
    if making.driver:
        return Cards(making.driver, making.capabilities, f"clusterfn.yml says ({host.source})")
    return _UNKNOWN
