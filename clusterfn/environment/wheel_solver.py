"""Solve what wants wheels: first what they run on, then the wheels by uv.

The lines of pip in an environment.yml, or in `packages=`, run on packages of conda. uv sees a stand-in for each of
those, so that it neither replaces one nor brings one twice. A project's file runs on a Python alone, from
python-build-standalone or the host: the caller's minor version, or the nearest that has a solution.

uv knows which archives python-build-standalone has; the release and the mirror are those that uv itself would take.
The hashes are in the file SHA256SUMS beside them. Where a mirror has none, the archive is downloaded once to compute
its hash.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from clusterfn.bridge.builder.fetch import make_request
from clusterfn.bridge.builder.plan import masked
from clusterfn.environment import conda_solver, uv
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import Say, SolveTarget
from clusterfn.environment.lock import EnvironmentLock, LockedPackage, Unsolved
from clusterfn.environment.project import normalize
from clusterfn.environment.python_source import STANDALONE, nearest_minors
from clusterfn.environment.specification import Specification, conda_requirement
from clusterfn.environment.wheel_files import PEP_440, without_password
from clusterfn.environment.wheels import WheelFinder
from clusterfn.errors import LockError

_SUMS = "SHA256SUMS"
_ANSWER_S = 5.0
# SHA256SUMS has some kilobytes, and a wrong file on a mirror may have gigabytes.
_MOST = 1 << 20
_BLOCK = 1 << 18
_HINT = (
    'take the host\'s own Python, environment="FILE[python:host]" or `env_python: host` in clusterfn.yml; or check '
    "your network and proxy, or name a mirror with UV_PYTHON_INSTALL_MIRROR"
)


def solve_with_wheels(
    spec: Specification, target: SolveTarget, before: EnvironmentLock | None, say: Say
) -> list[LockedPackage]:
    """Return the packages for the host; a project keeps the Python of the lock before, if that fits.

    Raise LockError if there is no solution, a tool is missing, or a channel, an index or the mirror does not answer.
    """
    # uv may say the same twice.
    project, once = spec.wheels, functools.lru_cache(maxsize=None)(say)
    assert project is not None, "only what wants wheels is solved so"
    finder = WheelFinder(spec, project, target, once)
    near, found = int(target.python.split(".")[1]), spec.python.found
    minors = [found.version] if found else [target.python] if spec.wants_python else nearest_minors(project, near)
    first: LockError | None = None
    tried: set[str] = set()
    for minor in minors:
        try:
            if spec.project:
                base = [_python(finder, minor, before)]
            else:
                # Users of a `pip:` section expect that their environment has pip.
                more = [] if any(each.name == "pip" for each in spec.conda) else [conda_requirement("pip")]
                conda = replace(spec, conda=(*spec.conda, *more))
                base = conda_solver.solve(conda, replace(target, python=minor), say)
            python = next(each.version for each in base if each.name == "python")
            if python not in tried:
                tried.add(python)
                wheels = _wheels(finder, base, python)
                # The mirror is asked last, once it is known that there is a solution.
                if base[0].manager == STANDALONE and not base[0].sha256:
                    base = [with_hash(base[0], once)]
                return [*base, *wheels]
        except Unsolved as unsolved:
            first = first or unsolved
    assert first is not None, "there is at least one Python to try"
    raise LockError(first.message, evidence=first.evidence, hint=first.hint)


def _wheels(finder: WheelFinder, base: Sequence[LockedPackage], python: str) -> list[LockedPackage]:
    """Return the wheels, without those that conda brings."""
    if finder.spec.project:
        # Markers may ask for the patch version of Python, so it is given in full.
        return finder.find(python)
    if not finder.project.lines:
        return []
    known: Mapping[str, str] = json.loads(Path(__file__).with_name("pypi_names.json").read_text(encoding="utf-8"))
    provided: dict[str, str] = {}
    for each in base:
        # An index may have another name for what conda brings, or several.
        names = [pypi for pypi, conda in known.items() if conda == each.name]
        provided.update(dict.fromkeys(names if each.name in known else [*names, normalize(each.name)], each.version))
    found, placeholders = finder.find(python, provided), provided
    # Only the index knows what an extra wants, so uv resolves conda's version from there.
    while finder.extended & placeholders.keys():
        placeholders = {name: version for name, version in provided.items() if name not in finder.extended}
        versions = [(name, provided[name]) for name in sorted(finder.extended)]
        pins = [f"{name}=={version}" for name, version in versions if PEP_440.fullmatch(version)]
        finder = replace(finder, spec=replace(finder.spec, pins=(*finder.spec.pins, *pins)))
        found = finder.find(python, placeholders)
    return [each for each in found if each.name not in provided]


def _python(finder: WheelFinder, minor: str, before: EnvironmentLock | None) -> LockedPackage:
    """Return a Python for a project; one that is new to its lock has no hash yet."""
    found, platform = finder.spec.python.found, finder.target.platform
    if found:
        finder.say(f"Python {found.version} is the host's own: {found.path} (glibc {found.glibc})")
        return LockedPackage("python", found.version, locks.HOST, "", "", platform)
    # Only the deletion of a lock changes its Python.
    for each in before.on(platform) if before else ():
        if each.name == "python" and each.manager == STANDALONE and each.version.startswith(f"{minor}."):
            return each
    return find_python(minor, platform, finder.project.path.parent)


def find_python(minor: str, platform: str, folder: Path) -> LockedPackage:
    """Return the newest Python of a minor version that uv knows, with the settings of a folder; ask no server.

    Raise Unsolved if there is no such Python for the platform, as conda names it.
    """
    name = f"cpython-{minor}-linux-{conda_solver.machine_of(platform)}-gnu"
    done = subprocess.run(
        [uv.find_uv(), "python", "list", name, "--only-downloads", "--offline", "--output-format", "json"],
        stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, check=False, env=uv.plain_variables(),
        encoding="utf-8", errors="replace",
    )  # fmt: skip
    try:
        listed = [each for each in json.loads(done.stdout) if each.get("url")]
    except ValueError as error:
        lines = masked(done.stderr).strip().splitlines()
        raise LockError("uv does not list the Pythons that it knows", evidence=lines[:10], hint=_HINT) from error
    if platform not in uv.LINUX or not listed:
        raise Unsolved(f"python-build-standalone has no Python {minor} for {platform}", hint=_HINT)
    return LockedPackage("python", str(listed[0]["version"]), STANDALONE, str(listed[0]["url"]), "", platform)


def with_hash(python: LockedPackage, say: Say) -> LockedPackage:
    """Return a Python with its hash, which only the mirror knows; raise LockError if that does not answer."""
    url, shown = python.url, masked(python.url)
    try:
        sha256 = _published_hash(url, python.file)
        if not sha256:
            say(f"there is no {_SUMS} beside {shown}: it is downloaded to compute its hash")
            found = hashlib.sha256()
            with urllib.request.urlopen(make_request(url, 0), timeout=_ANSWER_S) as answer:
                for block in iter(lambda: answer.read(_BLOCK), b""):
                    found.update(block)
            sha256 = found.hexdigest()
    except (OSError, ValueError, http.client.HTTPException) as error:
        what, why = f"Python {python.version} cannot be fetched from python-build-standalone", error
        evidence = [f"{shown}: {getattr(error, 'reason', None) or why}"]
        raise LockError(what, evidence=evidence, hint=_HINT) from error
    say(f"Python {python.version} comes from python-build-standalone: {shown}")
    return replace(python, url=without_password(url), sha256=sha256)


def _published_hash(url: str, file: str) -> str:
    """Return the hash that stands beside the archive; "" if there is none."""
    parts = urlsplit(url)
    beside = urlunsplit(parts._replace(path=f"{parts.path.rpartition('/')[0]}/{_SUMS}"))
    try:
        with urllib.request.urlopen(make_request(beside, 0), timeout=_ANSWER_S) as answer:
            lines = answer.read(_MOST).decode("utf-8", "replace").splitlines()
    except urllib.error.HTTPError as error:
        error.close()
        return ""
    except urllib.error.URLError:
        # A mirror in a folder may have no such file.
        if parts.scheme == "file":
            return ""
        raise
    rows = [line.split() for line in lines]
    return next((row[0].lower() for row in rows if len(row) == 2 and row[1].lstrip("*") == file), "")
