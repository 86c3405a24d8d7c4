"""Find the lock of a specification: the existing one while it fits, else solve one and write it next to the file.

A lock is solved again only if the specification changed, or if it has nothing for the platform. Other reasons are that
it was solved for more than the host has (a newer glibc or CUDA), or without a GPU. A message names the reason, and what
changed. A lock made by other tools is used as it is. `conda_solver` solves; `project_solver` does for a project's file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clusterfn.config import places
from clusterfn.environment import conda_solver
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import OLDEST_GLIBC, SolveTarget, numbers
from clusterfn.environment.lock import EnvironmentLock, Unsolved
from clusterfn.environment.specification import Specification
from clusterfn.errors import LockError

Say = Callable[[str], None]
Check = Callable[[EnvironmentLock], None]


def current_lock(spec: Specification, target: SolveTarget) -> EnvironmentLock | None:
    """Return the existing lock if it fits; None if one has to be made.

    Raises:
        LockError: What is there cannot be read.
    """
    path = lock_path(spec, target)
    found = locks.read_lock(path) if path.exists() else None
    return found if found and not why_lock_unusable(found, spec, target) else None


def lock_for(
    spec: Specification, target: SolveTarget, say: Say, other_reason: str = "", check: Check = lambda lock: None
) -> EnvironmentLock:
    """Return the lock of a specification for a host; solve it if necessary.

    Args:
        spec: What is wanted.
        target: The host that it is for.
        say: Called with sentences that say what is done and why.
        other_reason: A reason to solve again that only the caller knows; "" for none.
        check: Raises if a new lock is of no use; then nothing is written.

    Raises:
        LockError: There is no solution, or no solver; a channel does not answer; or a lock that was given does not fit.
    """
    path = lock_path(spec, target)
    before = locks.read_lock(path) if path.exists() or spec.given_lock else None
    reason = (why_lock_unusable(before, spec, target) or other_reason) if before else f"{path.name} does not exist yet"
    if before and not reason:
        return before
    if spec.given_lock:
        raise LockError(f"{path} does not match the host: {reason}", hint="lock it again from its specification")
    for sentence in spec.sentences:
        say(sentence)
    target = target if other_reason else _shared(spec, target, before)
    after = _solved(spec, target, path, before, reason, say, check)
    changes = f": {locks.differences(before, after, target.platform)}" if before else ""
    say(f"wrote {path} ({len(after.on(target.platform))} packages for {target.platform}){changes}")
    return after


def lock_path(spec: Specification, target: SolveTarget) -> Path:
    """Return the path of the lock: next to its file; for packages named in an argument, in the user's cache.

    Example:
        >>> from clusterfn.environment.specification import Specification
        >>> spec = Specification("environment.yml", file=Path("/p/environment.yml"))
        >>> lock_path(spec, SolveTarget("linux-64", "2.28", None, "3.11")).name
        'environment.conda-lock.yml'
    """
    if spec.given_lock:
        return spec.given_lock
    beside = lock_beside(spec)
    if beside:
        return beside
    return places.cache_folder() / "locks" / f"{spec.input_hash[:32]}-{target.python}.conda-lock.yml"


def lock_beside(spec: Specification) -> Path | None:
    """Return the path of the lock next to the file of a specification; None if it has no file."""
    if spec.file is None:
        return None
    stem = f"{spec.project.lock_stem}{spec.python.lock_suffix}" if spec.project else spec.file.stem
    return spec.file.with_name(f"{stem}.conda-lock.yml")


def has_unasked_host_python(spec: Specification) -> bool:
    """Whether a lock beside the file has the Python of a host because no other place gave one, and none since did."""
    usual = lock_beside(spec)
    if spec.project is None or usual is None or usual.exists():
        return False
    beside = usual.parent.glob(f"{spec.project.lock_stem}-host-python-*.conda-lock.yml")
    return any(locks.UNASKED in locks.read_lock(path).custom for path in beside)


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
    if target.glibc and numbers(glibc) > numbers(target.glibc):
        return f"{lock.path.name} was solved for glibc {glibc}, and the host has {target.glibc}"
    cuda = supposed.get("__cuda")
    # A build for an older CUDA runs on a newer driver, and any runs without a GPU.
    if not supposed or target.cuda is None or (cuda and numbers(cuda) <= numbers(target.cuda)):
        return ""
    solved = f"CUDA {cuda}" if cuda else "no GPU"
    return f"{lock.path.name} was solved for {solved}, and the host has CUDA {target.cuda}"


def _shared(spec: Specification, target: SolveTarget, before: EnvironmentLock | None) -> SolveTarget:
    """Make a target that fits this host and those of the lock until now: else two hosts would undo each other's."""
    same = before is not None and before.input_hash == spec.input_hash
    supposed = before.virtual_packages(target.platform) if before and same else {}
    if not supposed:
        return target
    glibc = min(filter(None, [target.glibc, supposed.get("__glibc", "")]), key=numbers, default="")
    cuda = min(filter(None, [target.cuda, supposed.get("__cuda")]), key=numbers, default=None)
    return replace(target, glibc=glibc, cuda=cuda)


def _solved(
    spec: Specification,
    target: SolveTarget,
    path: Path,
    before: EnvironmentLock | None,
    reason: str,
    say: Say,
    check: Check,
) -> EnvironmentLock:
    keeps = before if before is not None and before.input_hash == spec.input_hash else None
    platforms = [target.platform] if keeps else list(dict.fromkeys([*spec.platforms, target.platform]))
    host = f"glibc {target.glibc or OLDEST_GLIBC}, {f'CUDA {target.cuda}' if target.cuda else 'no GPU'}"
    say(f"solving {spec.title} for {', '.join(platforms)} ({host}): {reason}")
    try:
        if spec.project:
            from clusterfn.environment import project_solver  # most calls have no project

            data, python = project_solver.solve_project(spec, target, before, keeps, say)
        else:
            solve = conda_solver.solve
            if spec.pip_lines:
                from clusterfn.environment import pip_section

                solve = pip_section.solve_with_wheels
            data, pythons = solve(spec, target, platforms, keeps, say)
            python = pythons.get(target.platform, "")
    except Unsolved as unsolved:
        raise unsolved.error from unsolved
    lock = locks.parse_lock(data, path)
    if not (spec.wants_python or spec.python.found) and not f"{python}.".startswith(f"{target.python}."):
        say(f"no solution for Python {target.python}: the environment has {python}, the nearest that works")
    check(lock)
    locks.write_lock(path, data)
    return lock
