"""Solve what wants wheels: first what they run on, then the wheels by uv.

The lines of pip in an environment.yml, or in `packages=`, run on packages of conda. uv sees a stand-in for each of
those, so that it neither replaces one nor brings one twice. A project's file runs on a Python alone, from
python-build-standalone or the host: the caller's minor version, or the nearest that has a solution.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterfn.environment import conda_solver, standalone
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import Say, SolveTarget
from clusterfn.environment.lock import EnvironmentLock, LockedPackage, Unsolved
from clusterfn.environment.project import normalize
from clusterfn.environment.python_source import STANDALONE, nearest_minors
from clusterfn.environment.specification import Specification, conda_requirement
from clusterfn.environment.wheel_files import is_version
from clusterfn.environment.wheels import WheelFinder
from clusterfn.errors import LockError


def solve_with_wheels(
    spec: Specification, target: SolveTarget, before: EnvironmentLock | None, say: Say
) -> list[LockedPackage]:
    """Return the packages for the host.

    Args:
        before: The existing lock, whose Python a project keeps if it fits.

    Raises:
        LockError: There is no solution, a tool is missing, or a channel, an index or the mirror does not answer.
    """
    project, once = spec.wheels, functools.lru_cache(maxsize=None)(say)  # uv may say the same twice
    assert project is not None, "only what wants wheels is solved so"
    finder = WheelFinder(spec, project, target, once)
    near, found = int(target.python.split(".")[1]), spec.python.found
    minors = [found.version] if found else [target.python] if spec.wants_python else nearest_minors(project, near)
    first: LockError | None = None
    tried: set[str] = set()
    for minor in minors:
        try:
            if spec.project:
                base = [_python(spec, target, minor, before, finder)]
            else:
                has_pip = any(each.name == "pip" for each in spec.conda)
                more = () if has_pip else (conda_requirement("pip"),)  # users of a `pip:` section expect it
                conda = replace(spec, conda=(*spec.conda, *more))
                base = conda_solver.solve(conda, replace(target, python=minor), say)
            python = next(each.version for each in base if each.name == "python")
            if python not in tried:
                tried.add(python)
                wheels = _wheels(finder, base, python)
                if base[0].manager == STANDALONE and not base[0].sha256:  # the mirror is asked last
                    base = [standalone.with_hash(base[0], once)]
                return [*base, *wheels]
        except Unsolved as unsolved:
            first = first or unsolved
    assert first is not None, "there is at least one Python to try"
    raise LockError(first.message, evidence=first.evidence, hint=first.hint)


def _wheels(finder: WheelFinder, base: Sequence[LockedPackage], python: str) -> list[LockedPackage]:
    """Return the wheels, without those that conda brings."""
    if finder.spec.project:
        return finder.find(python)  # markers may ask for its patch
    if not finder.project.lines:
        return []
    provided = {name: each.version for each in base for name in _names_on_pypi(each.name)}
    found, stand_ins = finder.find(python, provided), provided
    while finder.extended & stand_ins.keys():  # only the index knows what an extra wants: uv resolves conda's version
        stand_ins = {name: version for name, version in provided.items() if name not in finder.extended}
        pins = [f"{name}=={provided[name]}" for name in sorted(finder.extended) if is_version(provided[name])]
        finder = replace(finder, spec=replace(finder.spec, pins=(*finder.spec.pins, *pins)))
        found = finder.find(python, stand_ins)
    return [each for each in found if each.name not in provided]


def _names_on_pypi(conda: str) -> list[str]:
    """Return the names under which an index has what conda calls so."""
    known = _known_names()
    return [pypi for pypi, name in known.items() if name == conda] + ([] if conda in known else [normalize(conda)])


@functools.lru_cache(maxsize=1)
def _known_names() -> Mapping[str, str]:
    """Return pypi's name -> conda's, where they differ."""
    path = Path(__file__).with_name("pypi_names.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _python(
    spec: Specification, target: SolveTarget, minor: str, before: EnvironmentLock | None, finder: WheelFinder
) -> LockedPackage:
    """Return a Python for a project; one that is new to its lock has no hash yet."""
    found = spec.python.found
    if found:
        finder.say(f"Python {found.version} is the host's own: {found.path} (glibc {found.glibc})")
        return LockedPackage("python", found.version, locks.HOST, "", "", target.platform)
    for each in before.on(target.platform) if before else ():  # only a deletion changes the Python of a lock
        if each.name == "python" and each.manager == STANDALONE and each.version.startswith(f"{minor}."):
            return each
    folder = spec.file.parent if spec.file else Path()
    return standalone.find_python(minor, target.platform, finder.program, folder)
