"""Resolve what a call names to a `LockedEnvironment` for a host: read its specification, and find or solve its lock.

Reads local files and starts the solver where a lock is missing; does not contact the host, whose facts are passed in.
"""

from __future__ import annotations

import functools
import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterfn.bridge import layout
from clusterfn.config import option_checks, places
from clusterfn.config.environment_kinds import (
    CHOOSE_ENVIRONMENT,
    NAME_ENVIRONMENT,
    OF_SCRIPT,
    names_a_file,
    names_an_image,
    split_file,
)
from clusterfn.config.job_spec import EnvironmentRef
from clusterfn.config.spec import Host, Interpreter
from clusterfn.environment import environment_files, solver, torch_build
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import Say, SolveTarget
from clusterfn.environment.lock import EnvironmentLock
from clusterfn.environment.packages import from_packages
from clusterfn.environment.python_source import HostPython, split_source
from clusterfn.environment.specification import Specification
from clusterfn.environment.torch_build import GpuCapabilities
from clusterfn.errors import ConfigError

ID_DIGITS = 20

PLATFORMS = {"linux-x86_64": "linux-64", "linux-aarch64": "linux-aarch64", "linux-ppc64le": "linux-ppc64le"}


@dataclass(frozen=True)
class LockedEnvironment:
    """An environment that a lock describes, on one host.

    Attributes:
        title: As the user named it.
        platform: conda's name of the host's platform.
        root: The folder of environments on the host, absolute.
        why: What decided its build of PyTorch, if that was asked.
        wanted: Names of the packages that were asked for.
        on_gpus: Whether its PyTorch must show that it runs on the job's GPUs.
        indexes: (name, address) of what the user's file names, for the credentials in it.
        base: The host's interpreter that it is built on; None if its Python is among its packages.
        glibc: Of the host; "" if unknown.
    """

    title: str
    lock: EnvironmentLock
    platform: str
    root: str
    host: Host
    cuda: str = ""
    why: str = ""
    wanted: tuple[str, ...] = ()
    on_gpus: bool = False
    indexes: tuple[tuple[str, str], ...] = ()
    base: HostPython | None = None
    glibc: str = ""

    @property
    def id(self) -> str:
        """Its name on every host; short, as the first line of a script may have at most 127 bytes."""
        identity = self.lock.id(self.platform)
        more: list[object] = [*self.base.identity] if self.base else []
        # Two hosts may share one root, and a wheel that one has built may not run on the other.
        if any(package.is_source for package in self.lock.on(self.platform)):
            more += [self.glibc, self.host.modules, self.host.setup]
        if more:
            identity = hashlib.sha256(json.dumps([identity, *more]).encode()).hexdigest()
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
        return torch_build.find_torch(self.lock.on(self.platform)) is not None

    @property
    def interpreter(self) -> Interpreter:
        """Its Python, known before it is built."""
        path = posixpath.join(self.prefix, "bin", "python")
        named = dict[str, str]()
        manager = self.lock.python_package(self.platform).manager
        if manager == locks.CONDA:
            title = Path(self.lock.path.name.partition(".conda-lock")[0]).stem
            named = {"CONDA_PREFIX": self.prefix, "CONDA_DEFAULT_ENV": f"{title}-{self.id[:8]}"}
        elif manager == locks.HOST:
            named = {"VIRTUAL_ENV": self.prefix}
        activation = {"prepend": {"PATH": [posixpath.dirname(path)]}, "set": named, "unset": []}
        return Interpreter(path, self.lock.python(self.platform), activation)

    @property
    def building(self) -> EnvironmentRef:
        """What the spec of a job says about it."""
        build = self.cuda or ("unknown" if self.on_gpus else "")
        return EnvironmentRef(self.id, self.root, self.host.making.purge_days is not None, build, self.host.owners)


def read_specification(text: str | None, packages: Sequence[str]) -> Specification:
    """Read the specification that a call names, or its packages; raise ConfigError if it names both or neither."""
    if packages and text:
        hint = "add the packages to the file, or leave one out"
        if names_an_image(text):
            hint = "add them to the image, or to a virtual environment: docs/how-to/containers.md says how"
        raise ConfigError(f"environment={text!r} and packages= are both given", hint=hint)
    if packages:
        return from_packages(packages)
    script = places.running_script()
    if text == OF_SCRIPT and script is not None:
        text = str(script)
    if not text or not names_a_file(option_checks.environment(text, "environment")):
        raise ConfigError(f"environment={text!r} does not name an environment", hint=CHOOSE_ENVIRONMENT)
    # A relative path may begin at the working directory, or at the script.
    folders = [Path.cwd(), *([script.parent] if script else [])]
    name, parts = split_file(text)
    source, parts = split_source(parts)
    spec = environment_files.read_file(environment_files.locate_file(name, folders), parts)
    if not source.kind:
        return spec
    named = f"python:{source.program or source.kind}"
    if spec.project is None:
        kinds = "only pyproject.toml, uv.lock, pylock.toml and requirements.txt leave Python open"
        what = f"{spec.title} says itself which Python it wants, but {named} is named"
        raise ConfigError(what, hint=f'write environment="{name}"; {kinds}')
    title = f"{spec.title[:-1]},{named}]" if spec.title.endswith("]") else f"{spec.title}[{named}]"
    return replace(spec, python=source, title=title)


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
        facts: Of the host: platform, glibc, root (where environments lie), absolute.
        gpus: The job's GPUs; None if it asks for none.
        caller: The caller's (major, minor).
        ask_gpus: Returns the GPUs of the host, None if it has none, for a new lock with PyTorch.

    Raises:
        LockError, EnvironmentBuildError: It cannot be solved, or no build of PyTorch runs on these GPUs.
        ConfigError: The host is of no kind for which packages are made.
    """
    target, say = _target(spec, host, facts, caller), functools.lru_cache(maxsize=None)(say)
    lock = torch_build.lock_with_torch(spec, target, gpus, ask_gpus, host.name, say)
    wanted = tuple(requirement.name for requirement in (*spec.conda, *spec.pip))
    made = LockedEnvironment(
        spec.title,
        lock,
        target.platform,
        facts["root"],
        host,
        indexes=spec.addresses,
        base=spec.python.found,
        wanted=wanted,
        glibc=target.glibc,
    )
    torch = torch_build.find_torch(lock.on(target.platform))
    if gpus is None or torch is None:
        return made
    torch_build.refuse_unusable_torch(torch, gpus, lock, host.name)
    because = torch_build.explain_torch(torch, gpus)
    if gpus is torch_build.UNKNOWN_GPUS:
        say(because)
    return replace(made, cuda=torch.cuda or "", why=because, on_gpus=True)


def why_stale(
    spec: Specification, host: Host, facts: Mapping[str, str], gpus: GpuCapabilities | None, caller: tuple[int, int]
) -> str:
    """Say why `resolve_environment` would solve again, or could not use the given lock; "" if it is up to date."""
    target = torch_build.needed_target(_target(spec, host, facts, caller), gpus)
    lock, why_not = solver.existing_lock(spec, target)
    torch = torch_build.find_torch(lock.on(target.platform)) if lock else None
    if why_not or gpus is None or torch is None or torch_build.runs_on_gpus(torch, gpus):
        return why_not
    return f"its PyTorch {torch.version} for CUDA {torch.cuda or 'none'} does not run on the GPUs of {host.name}"


def _target(spec: Specification, host: Host, facts: Mapping[str, str], caller: tuple[int, int]) -> SolveTarget:
    platform = facts["platform"]
    if platform not in PLATFORMS:
        what = f"clusterfn builds environments for {', '.join(PLATFORMS)}, but {host.name} is {platform}"
        raise ConfigError(what, host=host.name, hint=NAME_ENVIRONMENT)
    # An interpreter of the host may run with a C library of its own.
    glibc = spec.python.found.glibc if spec.python.found else facts["glibc"]
    return SolveTarget(PLATFORMS[platform], glibc, None, f"{caller[0]}.{caller[1]}")
