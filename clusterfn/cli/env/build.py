"""`clusterfn env lock` and `build`: lock a specification for hosts, and build it there before any job needs it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfn.bridge.supervisor.text import counted, format_size
from clusterfn.calls import environment_upload
from clusterfn.cli import target
from clusterfn.cli.env import read_ready, seconds
from clusterfn.config import config_file
from clusterfn.config.environment_kinds import names_a_file
from clusterfn.config.spec import Host, Resources
from clusterfn.display import console, live
from clusterfn.environment import resolve, torch_build
from clusterfn.environment.lock import EnvironmentLock
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.environment.specification import Specification
from clusterfn.errors import ConfigError
from clusterfn.hosts import environment_choice
from clusterfn.hosts.host_state import HostState, open_host

_HEAD = ("LOCK", "HOST", "PLATFORM", "ENVIRONMENT", "PACKAGES", "PYTHON", "CUDA")
USUAL_FILE = "environment.yml"


@dataclass(frozen=True)
class FileAndHosts:
    """The arguments, which may come in any order."""

    file: str | None
    hosts: tuple[str, ...]


def split_file_and_hosts(words: Sequence[str]) -> FileAndHosts:
    """Split arguments into the file of packages, by its suffix, and hosts.

    Raises:
        ConfigError: There are two files.

    Example:
        >>> split_file_and_hosts(["tensor01", "environment.yml"])
        FileAndHosts(file='environment.yml', hosts=('tensor01',))
    """
    files = [word for word in words if names_a_file(word)]
    if len(files) > 1:
        raise ConfigError(f"two files are named: {files[0]} and {files[1]}", hint="name one of them")
    return FileAndHosts(files[0] if files else None, tuple(word for word in words if word not in files))


def specification(file: str | None, packages: Sequence[str], where: Host | None) -> Specification:
    """Read the specification: from the file, from the packages, else from the host's own file, else environment.yml.

    Raises:
        ConfigError: None of these exists, or two do.
    """
    host_names = config_file.load().named if packages else []
    host = next((name for name in packages if name in host_names), None)
    if host:
        problem = f"--packages takes {host} for a package, but it is a host of {config_file.load().path}"
        raise ConfigError(problem, hint=f"name the host first: clusterfn env build {host} --packages …")
    if file or packages:
        return resolve.read_specification(file, packages)
    of_host = where.environment if where else None
    if of_host and names_a_file(of_host):
        return resolve.read_specification(of_host, ())
    if not Path(USUAL_FILE).is_file():
        hint = "name a file, or give the packages: --packages python=3.11 numpy"
        raise ConfigError(f"no file is named, and there is no {USUAL_FILE} in this folder", hint=hint)
    return resolve.read_specification(USUAL_FILE, ())


def lock(args: argparse.Namespace) -> int:
    """Write the lock; print a table of what it means on each host."""
    words = split_file_and_hosts(args.words)
    hosts = _hosts(words, "env lock")
    spec = specification(words.file, args.packages, hosts[0].settings)
    locked = [_lock_for(host, spec, args.gpus) for host in hosts]
    rows = [_row(environment.lock, environment.host.name, environment.platform) for environment in locked]
    if args.json:
        print(console.as_json([dict(zip(map(str.lower, _HEAD), row)) for row in rows]))
    else:
        print(live.table(_HEAD, rows))
    return 0


def _hosts(words: FileAndHosts, command: str) -> list[HostState]:
    return [open_host(host) for host in target.hosts(",".join(words.hosts) or None, command)[1]]


def _lock_for(host: HostState, spec: Specification, gpus: int | None) -> LockedEnvironment:
    host.capacity.enough(Resources(gpus=gpus or 0))
    if gpus is None:
        # A lock for GPUs also fits jobs without.
        gpus = int(environment_choice.known_gpus(host, environment_choice.environments_root(host)) is not None)
    locked = environment_choice.lock_environment(host, spec, gpus, console.tell)
    if locked.why:
        console.tell(f"{host.settings.name}: {locked.why}")
    return locked


def _row(locked: EnvironmentLock, host: str, platform: str) -> list[str]:
    packages = locked.on(platform)
    python = next(package.version for package in packages if package.name == "python")
    torch = torch_build.find_torch(packages)
    identity = locked.id(platform)[: resolve.ID_DIGITS]
    built_for = torch.cuda or "none" if torch else "-"
    return [locked.path.name, host, platform, identity, str(len(packages)), python, built_for]


def build(args: argparse.Namespace) -> int:
    """Build an environment, on several hosts one after another; print its id."""
    words = split_file_and_hosts(args.words)
    built = [_build_on(host, words.file, args) for host in _hosts(words, "env build")]
    if args.json:
        print(console.as_json(built if len(built) > 1 else built[0]))
    else:
        print("\n".join(facts["id"] for facts in built))
    return 0


def _build_on(host: HostState, file: str | None, args: argparse.Namespace) -> dict[str, Any]:
    spec = specification(file, args.packages, host.settings)
    host.capacity.enough(Resources(gpus=args.gpus))
    locked = environment_choice.lock_environment(host, spec, args.gpus, console.tell)
    if locked.why:
        console.tell(locked.why)
    try:
        new = environment_upload.build(host, locked)
    except KeyboardInterrupt:
        on = f"on {host.settings.name}, unless nothing was sent yet"
        console.warn(f"the build keeps running {on}; run the same command to follow it")
        raise
    ready = read_ready(host, locked.prefix)
    packages, files = counted(len(ready["packages"]), "package"), counted(ready["files"], "file")
    what = f"Python {ready['python']}, {packages}, {format_size(ready['bytes'])}, {files}"
    if new:
        console.tell(f"{locked.title} is built on {host.settings.name}: {what}; {seconds(ready['seconds'])}")
    else:
        console.tell(f"{locked.title} already exists on {host.settings.name}: {what}")
    return {"id": locked.id, "host": host.settings.name, "prefix": locked.prefix, "new": new}
