"""Find the lock of a specification: the existing one while it fits, else solve one and write it next to the file.

A lock is solved again only if the specification changed, or if it has nothing for the platform. Other reasons are that
it was solved for more than the host has (a newer glibc or CUDA), or without a GPU. A message names the reason, and what
changed. A lock made by other tools is used as it is. `conda_solver` solves; of a project's packages `wheels` finds the
wheels, and only its Python is solved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clusterfn.config import places
from clusterfn.environment import conda_solver
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import OLDEST_GLIBC, SolveTarget, virtual_packages
from clusterfn.environment.lock import EnvironmentLock, Unsolved
from clusterfn.environment.project import ProjectFile
from clusterfn.environment.specification import Specification, admits, conda_requirement
from clusterfn.errors import LockError

Say = Callable[[str], None]

_MINORS = range(8, 20)  # of Python 3
_TRIES = 4  # so many of them, as uv asks the indexes each time
_NEWEST_PATCH = 30  # until the channel says which one it has


def current_lock(spec: Specification, target: SolveTarget) -> EnvironmentLock | None:
    """Return the existing lock if it fits; None if one has to be made.

    Raises:
        LockError: What is there cannot be read.
    """
    path = lock_path(spec, target)
    found = locks.read_lock(path) if path.exists() else None
    return found if found and not why_lock_unusable(found, spec, target) else None


def lock_for(spec: Specification, target: SolveTarget, say: Say, other_reason: str = "") -> EnvironmentLock:
    """Return the lock of a specification for a host; solve it if necessary.

    Args:
        spec: What is wanted.
        target: The host that it is for.
        say: Called with sentences that say what is done and why.
        other_reason: A reason to solve again that only the caller knows; "" for none.

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
    after = _solved(spec, target, path, before, reason, say)
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
    return spec.file.with_name(f"{spec.project.lock_stem if spec.project else spec.file.stem}.conda-lock.yml")


def why_lock_unusable(lock: EnvironmentLock, spec: Specification, target: SolveTarget) -> str:
    """Say why a lock does not fit a specification and a host; "" if it does."""
    if lock.input_hash and not spec.given_lock and lock.input_hash != spec.input_hash:
        return f"{spec.title} has changed"
    if not lock.on(target.platform):
        return f"{lock.path.name} has nothing for {target.platform}"
    supposed = lock.virtual_packages(target.platform)
    glibc = supposed.get("__glibc", "0")
    if target.glibc and _numbers(glibc) > _numbers(target.glibc):
        return f"{lock.path.name} was solved for glibc {glibc}, and the host has {target.glibc}"
    cuda = supposed.get("__cuda")
    # A build for an older CUDA runs on a newer driver, and any runs without a GPU.
    if not supposed or target.cuda is None or (cuda and _numbers(cuda) <= _numbers(target.cuda)):
        return ""
    solved = f"CUDA {cuda}" if cuda else "no GPU"
    return f"{lock.path.name} was solved for {solved}, and the host has CUDA {target.cuda}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _shared(spec: Specification, target: SolveTarget, before: EnvironmentLock | None) -> SolveTarget:
    """Make a target that fits this host and those of the lock until now: else two hosts would undo each other's."""
    same = before is not None and before.input_hash == spec.input_hash
    supposed = before.virtual_packages(target.platform) if before and same else {}
    if not supposed:
        return target
    glibc = min(filter(None, [target.glibc, supposed.get("__glibc", "")]), key=_numbers, default="")
    cuda = min(filter(None, [target.cuda, supposed.get("__cuda")]), key=_numbers, default=None)
    return replace(target, glibc=glibc, cuda=cuda)


def _solved(
    spec: Specification, target: SolveTarget, path: Path, before: EnvironmentLock | None, reason: str, say: Say
) -> EnvironmentLock:
    keeps = before if before is not None and before.input_hash == spec.input_hash else None
    platforms = [target.platform] if keeps else list(dict.fromkeys([*spec.platforms, target.platform]))
    host = f"glibc {target.glibc or OLDEST_GLIBC}, {f'CUDA {target.cuda}' if target.cuda else 'no GPU'}"
    say(f"solving {spec.title} for {', '.join(platforms)} ({host}): {reason}")
    try:
        if spec.project:
            data, python = _solve_project(spec, target, before, keeps, say)
        else:
            data, pythons = conda_solver.solve(spec, target, platforms, keeps, say)
            python = pythons.get(target.platform, "")
    except Unsolved as unsolved:
        raise unsolved.error from unsolved
    lock = locks.parse_lock(data, path)
    if not spec.wants_python and not f"{python}.".startswith(f"{target.python}."):
        say(f"no solution for Python {target.python}: the environment has {python}, the nearest that works")
    locks.write_lock(path, data)
    return lock


def _solve_project(
    spec: Specification, target: SolveTarget, before: EnvironmentLock | None, keeps: EnvironmentLock | None, say: Say
) -> tuple[bytes, str]:
    """Return the content of a project's lock and its Python: that of the caller, or the nearest that works."""
    from clusterfn.environment import project_lock, wheels  # most calls have no project

    if spec.project is None:
        raise AssertionError("only a project is solved so")
    once = functools.lru_cache(maxsize=None)(say)  # uv may report the same twice
    finder = wheels.WheelFinder(spec, spec.project, target, once)
    first: Unsolved | None = None
    for minor in _minors(spec.project, target):
        try:
            finder.find(f"{minor}.{_NEWEST_PATCH}")  # fails before a channel is asked
            python = _python(spec, target, minor, before, say)
        except Unsolved as unsolved:
            first = first or unsolved
            continue
        full = locks.parse_lock(python, spec.file or Path()).python_version(target.platform)
        virtual = virtual_packages(target.platform, target)
        found = finder.find(full)  # markers may ask for its patch
        return project_lock.compose(python, found, target.platform, keeps, spec.input_hash, virtual), full
    if first is None:
        raise AssertionError("there is at least one Python to try")
    raise first


def _minors(project: ProjectFile, target: SolveTarget) -> list[str]:
    """List the Pythons that a project admits, the one nearest to the caller's first.

    Raises:
        LockError: It admits none.
    """
    near = int(target.python.split(".")[1])
    nearest = sorted(_MINORS, key=lambda each: (abs(each - near), -each))
    found = [f"3.{minor}" for minor in nearest if admits(project.requires_python, (3, minor))]
    if not found:
        raise LockError(
            f"{project.path.name} admits no Python 3: its requires-python is {project.requires_python!r}",
            hint='write requires-python = ">=3.10"',
        )
    return found[:_TRIES]


def _python(spec: Specification, target: SolveTarget, minor: str, before: EnvironmentLock | None, say: Say) -> bytes:
    """Return a lock with a Python: the one of the existing lock if that fits, so that only a deletion changes it."""
    if before and any(each.name == "python" and each.manager == "conda" for each in before.on(target.platform)):
        glibc = before.virtual_packages(target.platform).get("__glibc", "")
        fits = not target.glibc or (glibc and _numbers(glibc) <= _numbers(target.glibc))
        if fits and before.python_version(target.platform).startswith(f"{minor}."):
            return before.path.read_bytes()
    python = conda_requirement(f"python={minor}")
    alone = replace(spec, conda=(python,), pip=(), indexes=(), find_links=(), project=None)
    return conda_solver.solve(alone, target, [target.platform], None, say)[0]
