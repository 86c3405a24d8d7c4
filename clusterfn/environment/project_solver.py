"""Solve a project's file: wheels by uv, and Python from a conda channel, python-build-standalone or the host.

The Python is the caller's minor version, or the nearest that the project admits and for which there is a solution.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from clusterfn.bridge.builder.fetch import masked
from clusterfn.environment import conda_solver, project_lock, standalone
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import SolveTarget, numbers, virtual_packages
from clusterfn.environment.lock import EnvironmentLock, LockedPackage, NoPython, Unsolved
from clusterfn.environment.project import ProjectFile
from clusterfn.environment.python_source import CONDA, STANDALONE, HostPython
from clusterfn.environment.solve import condarc
from clusterfn.environment.specification import Specification, admits, conda_requirement
from clusterfn.environment.wheel_files import without_password
from clusterfn.environment.wheels import WheelFinder
from clusterfn.errors import LockError

Say = Callable[[str], None]

_MINORS = range(8, 20)  # of Python 3
_TRIES = 4  # so many of them, as uv asks the indexes each time
_NEWEST_PATCH = 30  # until it is known which one there is
_HINT = (
    'take the host\'s own Python, environment="FILE[python:host]" or `env_python: host` in clusterfn.yml; or name a '
    "mirror with UV_PYTHON_INSTALL_MIRROR"
)


def solve_project(
    spec: Specification, target: SolveTarget, before: EnvironmentLock | None, keeps: EnvironmentLock | None, say: Say
) -> tuple[bytes, str]:
    """Return the content of a project's lock, and the version of its Python.

    Args:
        before: The existing lock, whose Python is kept if it fits.
        keeps: A lock whose other platforms stay.

    Raises:
        Unsolved: There is no solution.
        LockError: A channel, an index or the mirror of Pythons does not answer.
    """
    if spec.project is None:
        raise AssertionError("only a project is solved so")
    once = functools.lru_cache(maxsize=None)(say)  # uv may report the same twice
    finder = WheelFinder(spec, spec.project, target, once)

    def composed(python: bytes, version: str) -> tuple[bytes, str]:
        found = finder.find(version)  # markers may ask for its patch
        virtual = virtual_packages(target.platform, target)  # a choice of PyTorch may have asked for the driver
        why = "no other place gives one" if spec.python.found and not spec.python.kind else ""
        return project_lock.compose(python, found, target.platform, keeps, spec.input_hash, virtual, why), version

    if spec.python.found:
        return composed(_python_of_host(spec, spec.python.found, target, once), spec.python.found.version)
    first: Unsolved | None = None
    for minor in nearest_minors(spec.project, int(target.python.split(".")[1])):
        try:
            finder.find(f"{minor}.{_NEWEST_PATCH}")  # fails before a channel is asked
            python = _python(spec, target, minor, before, finder, once)
        except Unsolved as unsolved:
            first = first or unsolved
            continue
        return composed(python, locks.parse_lock(python, spec.file or Path()).python_version(target.platform))
    if first is None:
        raise AssertionError("there is at least one Python to try")
    raise first


def nearest_minors(project: ProjectFile, near: int) -> list[str]:
    """List the Pythons that a project admits, the one nearest to the caller's minor version first.

    Raises:
        LockError: It admits none.
    """
    nearest = sorted(_MINORS, key=lambda each: (abs(each - near), -each))
    found = [f"3.{minor}" for minor in nearest if admits(project.requires_python, (3, minor))]
    if not found:
        raise LockError(
            f"{project.path.name} admits no Python 3: its requires-python is {project.requires_python!r}",
            hint='write requires-python = ">=3.10"',
        )
    return found[:_TRIES]


def _python_of_host(spec: Specification, found: HostPython, target: SolveTarget, say: Say) -> bytes:
    say(f"Python {found.version} is the host's own: {found.path} (glibc {found.glibc})")
    package = LockedPackage("python", found.version, "", locks.HOST, "", "", "", target.platform)
    return project_lock.python_alone(package, spec.title)


def _python(
    spec: Specification, target: SolveTarget, minor: str, before: EnvironmentLock | None, finder: WheelFinder, say: Say
) -> bytes:
    """Return a lock with a Python: the one of the existing lock if that fits, so that only a deletion changes it."""
    if before and _may_stay(before, spec, target, minor):
        return before.path.read_bytes()
    if spec.python.kind == STANDALONE:
        return _python_alone(spec, target, minor, finder, say)
    python = conda_requirement(f"python={minor}")
    alone = replace(spec, conda=(python,), pip=(), indexes=(), find_links=(), project=None)
    try:
        if not spec.python.kind:  # a solver is 280 MB to download, of no use without a channel
            conda_solver.refuse_unreachable(alone)
        made, solved = conda_solver.solve(alone, target, [target.platform], None, say)
    except LockError as error:  # no channel answers, or no solver can be had
        if spec.python.kind == CONDA:
            raise
        say(f"no conda channel gives Python ({error.message}): python-build-standalone is tried")
        try:
            return _python_alone(spec, target, minor, finder, say)
        except LockError as other:
            evidence = [error.message, *error.evidence, other.message, *other.evidence]
            raise NoPython(f"no place gives a Python for {spec.title}", evidence=evidence, hint=_HINT) from other
    say(f"Python {solved[target.platform]} comes from the conda channels {', '.join(map(masked, spec.channels))}")
    return made


def _python_alone(spec: Specification, target: SolveTarget, minor: str, finder: WheelFinder, say: Say) -> bytes:
    folder = spec.file.parent if spec.file else Path()
    package = standalone.find_python(minor, target.platform, finder.program, folder, say)
    return project_lock.python_alone(package, spec.title)


def _may_stay(before: EnvironmentLock, spec: Specification, target: SolveTarget, minor: str) -> bool:
    """Whether the Python of an existing lock is of the wanted source, channels and minor version, and fits the host."""
    if not before.on(target.platform):
        return False
    python = before.python_package(target.platform)
    if python.manager not in ([spec.python.kind] if spec.python.kind else [CONDA, STANDALONE]):
        return False
    if python.manager == CONDA and not any(map(_bare(python.url).startswith, _channels(spec))):
        return False
    glibc = before.virtual_packages(target.platform).get("__glibc", "")
    fits = not target.glibc or bool(glibc and numbers(glibc) <= numbers(target.glibc))
    return fits and python.version.startswith(f"{minor}.")


def _channels(spec: Specification) -> Iterator[str]:
    """Yield the addresses of a specification's channels, as they begin those of their packages."""
    settings = condarc.settings()
    for name in spec.channels:
        yield from (f"{_bare(url).rstrip('/')}/" for url in condarc.urls(name, settings))


def _bare(url: str) -> str:
    """Return an address without its password, and without the token of a channel."""
    return re.sub(r"/t/[^/]+/", "/", without_password(url))
