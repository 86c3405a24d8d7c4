"""Find the lock of a specification: the existing one while it fits, else solve one and write it next to the file.

A lock is solved again only if the specification changed, or if it has nothing for the platform. Other reasons are that
it was solved for more than the host has (a newer glibc or CUDA), or without a GPU. A message names the reason, and what
changed. A lock made by other tools is used as it is. `conda_solver` solves, and `wheels` where wheels are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from clusterfn.bridge.supervisor import publish
from clusterfn.bridge.supervisor.text import counted
from clusterfn.config import places
from clusterfn.config.notes import is_verbose
from clusterfn.environment import conda_solver
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import OLDEST_GLIBC, Say, SolveTarget
from clusterfn.environment.existing import CALLER, OLDEST
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.project import version
from clusterfn.environment.specification import Specification
from clusterfn.errors import LockError

Check = Callable[[EnvironmentLock], None]

_HEADER = b"# Written by clusterfn: packages of conda, and wheels chosen by uv. Commit this file.\n"
# A line that names more packages cannot be read at a glance.
_NAMED = 8


def existing_lock(spec: Specification, target: SolveTarget) -> tuple[EnvironmentLock | None, str]:
    """Return the lock that is there, and why it does not fit, "" if it does; raise LockError if it cannot be read."""
    path = lock_path(spec, target)
    found = locks.read_lock(path) if path.exists() or spec.given_lock else None
    missing = f"{path.name} does not exist yet" if lock_beside(spec) else "they have not been locked before"
    return found, why_lock_unusable(found, spec, target) if found else missing


def lock_for(
    spec: Specification, target: SolveTarget, say: Say, other_reason: str = "", check: Check = lambda lock: None
) -> EnvironmentLock:
    """Return the lock of a specification for a host; solve it if necessary.

    Args:
        say: Called with sentences that say what is done and why.
        other_reason: A reason to solve again that only the caller knows; "" for none.
        check: Raises if a new lock is of no use; then nothing is written.

    Raises:
        LockError: There is no solution, or no solver; a channel does not answer; a lock that was given does not fit; or
            its Python is too old for functions.
    """
    path = lock_path(spec, target)
    before, reason = existing_lock(spec, target)
    reason = reason or other_reason
    if before and not reason:
        _refuse_old_python(before, spec, target)
        return before
    if spec.given_lock:
        raise LockError(f"{path} does not match the host: {reason}", hint="lock it again from its specification")
    for sentence in spec.sentences:
        say(sentence)
    same = before if before and before.input_hash == spec.input_hash else None
    # Hosts that share a lock share what it supposes, or two would undo each other's; unless its PyTorch has to change.
    supposed = same.virtual_packages(target.platform) if same and not other_reason else {}
    glibc = min(filter(None, [target.glibc, supposed.get("__glibc")]), key=version, default="")
    cuda = min(filter(None, [target.cuda, supposed.get("__cuda")]), key=version, default=None)
    target = replace(target, glibc=glibc, cuda=cuda)
    host = f"glibc {target.glibc or OLDEST_GLIBC}, {f'CUDA {target.cuda}' if target.cuda else 'no GPU'}"
    say(f"solving {spec.title} for {target.platform} ({host}): {reason}")
    if spec.wheels:
        # Most calls solve nothing, so they need not wait for this import.
        from clusterfn.environment import wheels

        packages = wheels.solve_with_wheels(spec, target, before, say)
    else:
        packages = conda_solver.solve(spec, target, say)
    data = lock_content(packages, target, same, spec)
    lock = locks.parse_lock(data, path)
    python = f"{lock.python_package(target.platform).version}."
    if not (spec.wants_python or spec.python.found or python.startswith(f"{target.python}.")):
        say(f"no solution for Python {target.python}: the environment has {python[:-1]}, the nearest that works")
    # A lock that is of no use must not replace one that is.
    _refuse_old_python(lock, spec, target)
    check(lock)
    write_lock(path, data)
    changes = f": {differences(before, lock, target.platform, named=is_verbose())}" if before else ""
    say(f"wrote {path} ({counted(len(lock.on(target.platform)), 'package')} for {target.platform}){changes}")
    return replace(lock, written=path.stat().st_mtime_ns)


def _refuse_old_python(lock: EnvironmentLock, spec: Specification, target: SolveTarget) -> None:
    """Raise before anything is built: no function would run there."""
    found = lock.python(target.platform)
    if found < OLDEST:
        what = f"{spec.title} wants Python {found[0]}.{found[1]}, and a function needs {OLDEST[0]}.{OLDEST[1]} or newer"
        raise LockError(what, hint=f"ask for a newer one, ideally {CALLER[0]}.{CALLER[1]} as on this machine")


def lock_path(spec: Specification, target: SolveTarget) -> Path:
    """Return the path of the lock: next to its file; for packages named in an argument, in the user's cache."""
    beside = spec.given_lock or lock_beside(spec)
    return beside or places.cache_folder() / "locks" / f"{spec.input_hash[:32]}-{target.python}.conda-lock.yml"


def lock_beside(spec: Specification) -> Path | None:
    """Return the path of the lock next to the file of a specification; None if it has no file.

    Other extras have another lock, pyproject-gpu-group-dev.conda-lock.yml, and so have hosts with another Python of
    their own, pyproject-host-python-3.11.4.conda-lock.yml.
    """
    if spec.file is None:
        return None
    words = [spec.file.stem]
    if spec.wheels:
        words = [spec.wheels.path.stem, *spec.wheels.extras, *(f"group-{group}" for group in spec.wheels.groups)]
        words += [f"host-python-{spec.python.found.version}"] if spec.python.found else []
    return spec.file.with_name(f"{'-'.join(words)}.conda-lock.yml")


def why_lock_unusable(lock: EnvironmentLock, spec: Specification, target: SolveTarget) -> str:
    """Say why a lock does not fit a specification and a host; "" if it does."""
    if lock.input_hash and not spec.given_lock and lock.input_hash != spec.input_hash:
        return f"{spec.title} has changed"
    if not lock.on(target.platform):
        return f"{lock.path.name} has nothing for {target.platform}"
    if spec.python.kind and lock.python_package(target.platform).manager != spec.python.kind:
        has = lock.python_package(target.platform).manager
        return f"{lock.path.name} has a Python of another source ({has}), and {spec.python.kind} is asked for"
    supposed = lock.virtual_packages(target.platform)
    glibc = supposed.get("__glibc", "0")
    if target.glibc and version(glibc) > version(target.glibc):
        return f"{lock.path.name} was solved for glibc {glibc}, and the host has {target.glibc}"
    cuda = supposed.get("__cuda")
    # A build for an older CUDA runs on a newer driver, and any runs without a GPU.
    if not supposed or target.cuda is None or (cuda and version(cuda) <= version(target.cuda)):
        return ""
    solved = f"CUDA {cuda}" if cuda else "no GPU"
    return f"{lock.path.name} was solved for {solved}, and the host has CUDA {target.cuda}"


def lock_content(
    packages: Sequence[LockedPackage], target: SolveTarget, before: EnvironmentLock | None, spec: Specification
) -> bytes:
    """Return the content of a lock with these packages; the other platforms of the one before stay."""
    kept = [platform for platform in before.platforms if platform != target.platform] if before else []
    supposed = {platform: before.virtual_packages(platform) for platform in kept if before}
    supposed = {target.platform: conda_solver.virtual_packages(target), **supposed}
    joined = {
        locks.VIRTUAL + platform: ";".join(f"{name}={version}" for name, version in sorted(versions.items()))
        for platform, versions in supposed.items()
    }
    metadata = {
        "content_hash": dict.fromkeys(supposed, spec.input_hash),
        "channels": [{"url": conda_solver.public(channel), "used_env_vars": []} for channel in spec.channels],
        "platforms": list(supposed),
        "sources": [spec.file.name if spec.file else "packages"],
        "custom_metadata": {locks.INPUT: spec.input_hash, **joined},
    }
    rows: list[dict[str, Any]] = []
    # What builds a source distribution has a category of its own.
    for package in (*packages, *(package for platform in kept if before for package in before.on(platform))):
        for locked in (package, *package.builds_with):
            hashes = {"md5": locked.md5, "sha256": locked.sha256}
            row: dict[str, Any] = {"name": locked.name, "version": locked.version, "manager": locked.manager}
            row |= {"platform": locked.platform, "dependencies": dict(locked.dependencies), "url": locked.url}
            row["hash"] = {kind: digest for kind, digest in hashes.items() if digest}
            row["category"] = "main" if locked is package else f"{locks.BUILDS}{package.name}"
            rows.append({**row, "optional": False})
    tree = {"version": locks.FORMAT, "metadata": metadata, "package": rows}
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return _HEADER + yaml.dump(tree, Dumper=dumper, sort_keys=False, allow_unicode=True, width=10_000).encode()


def write_lock(path: Path, data: bytes) -> None:
    """Write a lock, so that no reader sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish.replace(str(path), data, mode=0o666)
    except OSError as error:
        raise LockError(f"the lock cannot be written: {path}: {error.strerror}") from error


def differences(before: EnvironmentLock, after: EnvironmentLock, platform: str, *, named: bool = False) -> str:
    """Describe what changed: "numpy 1.26.4 -> 2.1.3; new: rich; gone: six"; many are only counted, unless `named`."""

    def change(old: LockedPackage, new: LockedPackage) -> str:
        if old.version != new.version:
            return f"{old.version} -> {new.version}"
        if old.build != new.build:
            return f"{old.version} {old.build} -> {new.build}"
        return "from another archive" if old.sha256 != new.sha256 else "built with other packages"

    old, new = ({(package.manager, package.name): package for package in lock.on(platform)} for lock in (before, after))
    pairs = [(key[1], old[key], new[key]) for key in sorted(old.keys() & new.keys())]
    found = {
        "changed": [f"{name} {change(was, now)}" for name, was, now in pairs if was.identity != now.identity],
        "new": sorted(name for _, name in new.keys() - old.keys()),
        "gone": sorted(name for _, name in old.keys() - new.keys()),
    }
    if not named and sum(map(len, found.values())) > _NAMED:
        return ", ".join(f"{len(names)} {word}" for word, names in found.items() if names)
    parts = [("" if word == "changed" else f"{word}: ") + ", ".join(names) for word, names in found.items() if names]
    return "; ".join(parts) or "the packages are the same"
