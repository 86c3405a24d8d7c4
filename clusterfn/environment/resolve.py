"""Resolve what a call names to a `LockedEnvironment` for a host: read its specification, and find or solve its lock.

Reads local files and starts the solver where a lock is missing; does not contact the host, whose facts are passed in.
"""

from __future__ import annotations

import functools
import hashlib
import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterfn.bridge import layout
from clusterfn.config import places
from clusterfn.config.job_spec import EnvironmentRef
from clusterfn.config.options import names_a_file, split_file
from clusterfn.config.spec import Host, Interpreter
from clusterfn.environment import cuda, environment_yml, solver, torch_build
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.cuda import GpuCapabilities
from clusterfn.environment.lock import EnvironmentLock
from clusterfn.environment.packages import from_packages
from clusterfn.environment.python_source import HostPython, split_source, title_with
from clusterfn.environment.solve import condarc
from clusterfn.environment.specification import USUAL_CHANNEL, Specification
from clusterfn.errors import ConfigError

Say = Callable[[str], None]

ID_DIGITS = 20
_NODE_DISK = "/var/tmp"  # the builder makes a private folder of the user in it, and checks it

_PLATFORMS = {"linux-x86_64": "linux-64", "linux-aarch64": "linux-aarch64", "linux-ppc64le": "linux-ppc64le"}


@dataclass(frozen=True)
class LockedEnvironment:
    """An environment that a lock describes, on one host.

    Attributes:
        title: As the user named it.
        platform: conda's name of the host's platform.
        root: The folder of environments on the host, absolute.
        why: What decided its build of PyTorch, if that was asked.
        wanted: Names of the packages that were asked for.
        uid: The user id on the host.
        on_gpus: Whether its PyTorch must show that it runs on the job's GPUs.
        indexes: (name, address) of the package indexes that the user names; some want a password.
        base: The host's interpreter that it is built on; None if its Python is among its packages.
    """

    title: str
    lock: EnvironmentLock
    platform: str
    root: str
    host: Host
    cuda: str = ""
    why: str = ""
    wanted: tuple[str, ...] = ()
    uid: int = 0
    on_gpus: bool = False
    indexes: tuple[tuple[str, str], ...] = ()
    base: HostPython | None = None

    @property
    def id(self) -> str:
        """Its name on every host; short, as the first line of a script may have at most 127 bytes."""
        identity = self.lock.id(self.platform)
        if self.base:
            identity = hashlib.sha256(json.dumps([identity, *self.base.identity]).encode()).hexdigest()
        return identity[:ID_DIGITS]

    @property
    def prefix(self) -> str:
        """Its folder on this host."""
        return layout.environment_dir(self.root, self.id)

    @property
    def ready(self) -> str:
        """The file that exists once it is complete."""
        return posixpath.join(self.prefix, layout.READY)

    @property
    def has_torch(self) -> bool:
        """Whether PyTorch is among its packages, in any build."""
        return torch_build.find_torch(self.lock.on(self.platform), cuda.load_table()) is not None

    @property
    def node_root(self) -> str:
        """The folder on each node's own disk into which it is unpacked; "" if it runs where it was made."""
        at = self.host.making.at
        return "" if at == "root" else posixpath.join(_NODE_DISK if at == "node" else at, f"clusterfn-{self.uid}")

    @property
    def interpreter(self) -> Interpreter:
        """Its Python, known before it is built."""
        prefix = layout.environment_dir(self.node_root, self.id) if self.node_root else self.prefix
        path = posixpath.join(prefix, "bin", "python")
        title = Path(self.lock.path.name.partition(".conda-lock")[0]).stem
        of_conda = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": f"{title}-{self.id[:8]}"}
        named = {locks.CONDA: of_conda, locks.HOST: {"VIRTUAL_ENV": prefix}}.get(
            self.lock.python_package(self.platform).manager, {}
        )
        activation = {"prepend": {"PATH": [posixpath.dirname(path)]}, "set": named, "unset": []}
        return Interpreter(path, self.lock.python(self.platform), activation)

    @property
    def building(self) -> EnvironmentRef:
        """What the spec of a job says about it."""
        making, build = self.host.making, self.cuda or ("unknown" if self.on_gpus else "")
        purged = making.purge_days is not None
        return EnvironmentRef(self.id, self.root, purged, build, self.node_root, self.host.owners)


def read_specification(text: str | None, packages: Sequence[str]) -> Specification:
    """Read the specification that a call names, or its packages.

    Raises:
        ConfigError: Both are given, or neither is understood, or the file is missing.
    """
    if packages and text:
        raise ConfigError(
            f"environment={text!r} and packages= are both given", hint="add the packages to the file, or leave one out"
        )
    if packages:
        return with_own_channels(from_packages(packages))
    if not text or not names_a_file(text):
        raise ConfigError(
            f"environment={text!r} does not name an environment",
            hint='name one on the host ("python:/path", "venv:~/v", "prefix:/path", "conda:name"), a file to '
            'build it from ("environment.yml", "requirements.txt"), or packages=["python=3.11", "numpy"]',
        )
    script = places.running_script()
    folders = [Path.cwd(), *([script.parent] if script else [])]  # where a relative path may begin
    name, parts = split_file(text)
    source, parts = split_source(parts)
    spec = environment_yml.read_file(environment_yml.locate_file(name, folders), parts)
    if not source.kind:
        return spec
    if spec.project is None:
        raise ConfigError(
            f"{spec.title} says itself which Python it wants, but python:{source.program or source.kind} is named",
            hint=f'write environment="{name}"; only pyproject.toml, uv.lock, pylock.toml and requirements.txt leave '
            "Python open",
        )
    return replace(spec, python=source, title=title_with(spec.title, source))


def with_own_channels(spec: Specification) -> Specification:
    """Replace the usual channel by those of the user's .condarc, if there are some."""
    own = condarc.channels(condarc.settings())
    if not own or USUAL_CHANNEL not in spec.channels:
        return spec
    others = (each for each in spec.channels if each != USUAL_CHANNEL)
    return replace(spec, channels=tuple(dict.fromkeys([*own, *others])))


def fingerprint_files(spec: Specification) -> str:
    """Return a text that changes when the specification, or a lock next to it, does."""
    files = [path for path in (spec.given_lock, solver.lock_beside(spec)) if path]
    times = [f"{path}:{path.stat().st_mtime_ns}" for path in files if path.exists()]
    return "|".join([spec.title, spec.input_hash, *times])


def resolve_environment(
    spec: Specification,
    host: Host,
    facts: Mapping[str, str],
    gpus: GpuCapabilities | None,
    caller: tuple[int, int],
    say: Say,
    ask_gpus: torch_build.AskGpus = lambda: None,
) -> LockedEnvironment:
    """Find or solve the lock of a specification for a host, with a PyTorch that its GPUs can run.

    Args:
        facts: Of the host: platform, glibc, root (where environments lie), absolute, and the user's uid.
        gpus: The job's GPUs; None if it asks for none.
        caller: The caller's (major, minor).
        ask_gpus: Returns the GPUs of the host, None if it has none, for a new lock with PyTorch.

    Raises:
        LockError: It cannot be solved.
        EnvironmentBuildError: No build of PyTorch runs on these GPUs.
        ConfigError: The host is of no kind for which packages are made.
    """
    target = _target(spec, host, facts, gpus, caller)
    wanted = tuple(each.name for each in (*spec.conda, *spec.pip))
    indexes = (*(spec.project.indexes if spec.project else ()), *(("", url) for url in spec.indexes))
    made = functools.partial(
        LockedEnvironment, platform=target.platform, root=facts["root"], host=host, wanted=wanted,
        uid=int(facts["uid"]), indexes=indexes, base=spec.python.found,
    )  # fmt: skip
    table = torch_build.load_table_of(host)
    if gpus is None:
        return made(spec.title, torch_build.lock_without_gpus(spec, target, ask_gpus, table, host, say))
    lock, choice = torch_build.lock_with_torch(spec, target, gpus, table, host, say)
    torch = torch_build.find_torch(lock.on(target.platform), table)
    torch_build.refuse_unusable_torch(torch, gpus, table, lock, host)
    because = ""
    if torch:  # of the lock, which may have another build than the one that was looked for
        as_chosen = choice is not None and torch.cuda == choice.cuda
        because = choice.because if choice and as_chosen else torch_build.explain_locked_torch(torch, gpus, table)
        if choice and not as_chosen:
            say(because)
    if gpus is torch_build.UNKNOWN_GPUS and torch:
        say(because)
    built_for = torch.cuda or "" if torch else ""
    return made(spec.title, lock, cuda=built_for, why=because, on_gpus=torch is not None)


def why_stale(
    spec: Specification, host: Host, facts: Mapping[str, str], gpus: GpuCapabilities | None, caller: tuple[int, int]
) -> str:
    """Say why `resolve_environment` would solve again, or could not use the given lock; "" if the lock is up to date.

    Raises:
        LockError: What is there cannot be read.
    """
    target = _target(spec, host, facts, gpus, caller)
    path = solver.lock_path(spec, target)
    if not path.exists():
        return f"{path.name} does not exist"
    lock, table = locks.read_lock(path), torch_build.load_table_of(host)
    torch = torch_build.find_torch(lock.on(target.platform), table)
    why_not = solver.why_lock_unusable(lock, spec, target)
    if why_not or gpus is None or torch is None or torch_build.runs_on_gpus(torch, gpus, table):
        return why_not
    return f"its PyTorch {torch.version} for CUDA {torch.cuda or 'none'} does not run on the GPUs of {host.name}"


def _target(
    spec: Specification, host: Host, facts: Mapping[str, str], gpus: GpuCapabilities | None, caller: tuple[int, int]
) -> SolveTarget:
    platform = facts["platform"]
    if platform not in _PLATFORMS:
        raise ConfigError(
            f"clusterfn builds environments for {', '.join(_PLATFORMS)}, but {host.name} is {platform}", host=host.name,
            hint='name one on the host: environment="python:/path", "venv:…", "prefix:…" or "conda:…"',
        )  # fmt: skip
    newest = cuda.newest_cuda(gpus.driver) if gpus is not None else None
    glibc = spec.python.found.glibc if spec.python.found else facts["glibc"]  # that of its own C library
    return SolveTarget(_PLATFORMS[platform], glibc, newest, f"{caller[0]}.{caller[1]}")
