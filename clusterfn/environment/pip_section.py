"""Solve what has packages of conda and lines of pip: conda's first, as conda itself does, then the wheels by uv.

uv sees a stand-in for each package that conda brings, so that it neither replaces one nor brings one twice.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterfn.environment import conda_solver, project_lock
from clusterfn.environment import solve as solve_folder
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.lock import CONDA, EnvironmentLock, Unsolved
from clusterfn.environment.project import ProjectFile, normalize
from clusterfn.environment.project_solver import nearest_minors
from clusterfn.environment.specification import Specification, conda_requirement
from clusterfn.environment.wheel_files import Wheel
from clusterfn.environment.wheels import WheelFinder

Say = Callable[[str], None]

# As conda-lock understands a comment behind a line: `# [linux]`.
_SELECTORS = {
    "linux-64": ("linux64", "unix", "linux"), "linux-aarch64": ("aarch64", "unix", "linux"),
    "linux-ppc64le": ("ppc64le", "unix", "linux"), "osx-64": ("osx64", "osx", "unix"),
    "osx-arm64": ("arm64", "osx", "unix"), "win-64": ("win64", "win"),
}  # fmt: skip


def solve_with_wheels(
    spec: Specification, target: SolveTarget, platforms: list[str], keeps: EnvironmentLock | None, say: Say
) -> tuple[bytes, dict[str, str]]:
    """Return the content of a new lock, and the version of Python for each platform.

    Args:
        platforms: What to solve for.
        keeps: A lock whose other platforms stay.

    Raises:
        Unsolved: There is no solution.
        LockError: A channel or an index does not answer, or a tool is missing.
    """
    section = spec.pip_lines
    if section is None:
        raise AssertionError("only a specification with lines of pip is solved so")
    once = functools.lru_cache(maxsize=None)(say)
    has_pip = any(each.name == "pip" for each in spec.conda)
    more = () if has_pip else (conda_requirement("pip"),)  # users of a `pip:` section expect it
    conda = replace(spec, conda=(*spec.conda, *more), pip=(), pip_section=None, indexes=(), wish=spec.input_hash)
    near = int(target.python.split(".")[1])
    minors = [target.python] if spec.wants_python else nearest_minors(section, near)
    first: Unsolved | None = None
    tried: set[str] = set()
    for minor in minors:
        made, pythons = conda_solver.solve(conda, replace(target, python=minor), platforms, keeps, say)
        if pythons.get(target.platform, "") in tried:
            continue
        tried.add(pythons.get(target.platform, ""))
        try:
            found = {each: _wheels(spec, section, target, each, made, pythons[each], once) for each in platforms}
        except Unsolved as unsolved:
            first = first or unsolved
            continue
        return project_lock.with_wheels(made, found), pythons
    raise first or AssertionError("there is at least one Python to try")


def _wheels(
    spec: Specification, section: ProjectFile, target: SolveTarget, platform: str, made: bytes, python: str, say: Say
) -> Sequence[Wheel]:
    lines = tuple((text, "") for text, selector in section.lines if selector in ("", *_SELECTORS.get(platform, ())))
    if not lines:
        return ()
    host = target if platform == target.platform else replace(target, platform=platform, cuda=None, torch=None)
    rows = [row for row in project_lock.rows_of(made, platform) if row["manager"] == CONDA]
    provided = {each: str(row["version"]) for row in rows for each in _names_on_pypi(str(row["name"]))}
    for each in spec.pip:
        if each.has_extras and each.name in provided:
            say(f"{each.text}: conda brings {each.name} {provided[each.name]}, and its extras are not installed")
    return WheelFinder(spec, replace(section, lines=lines), host, say).find(python, provided)


def _names_on_pypi(conda: str) -> list[str]:
    """Return the names under which an index has what conda calls so."""
    known = _known_names()
    return [pypi for pypi, name in known.items() if name == conda] + ([] if conda in known else [normalize(conda)])


@functools.lru_cache(maxsize=1)
def _known_names() -> Mapping[str, str]:
    """Return pypi's name -> conda's, where they differ."""
    path = Path(solve_folder.__file__).with_name("pypi_names.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))
