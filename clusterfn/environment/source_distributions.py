"""Judge what uv finds as source only: take wheels where an older version has them, else find what builds it.

uv resolves as pip does, so the newest version counts, even if it is only there as source. What was never published as
a wheel is built. A version that has wheels, though none for the host, is mostly large and hard to compile (numpy 2.4 on
an old glibc): then the newest version with a wheel for the host is better.

The pyproject.toml of a source distribution says what builds it, and its build backend may want more. The lock then has
all of it, with hashes, so that the host builds the same wheel at any time and without an index.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from clusterfn.environment import download
from clusterfn.environment.lock import LockedPackage
from clusterfn.environment.project import PYPROJECT, load_toml, normalize
from clusterfn.environment.specification import TORCHES
from clusterfn.environment.uv import UvResult
from clusterfn.errors import LockError

ANYWHERE = "--universal"
_NO_WHEEL = re.compile(r"no (?:usable )?wheels|building from source is disabled|Wheels are required for")
_FAILED = re.compile(r"Failed to (?:build|download and build) `([^`=@ ]+)(?:==([^`]+))?")
# Another version of one package may bring another source distribution, so one round is not enough.
_ROUNDS = 3
# PEP 517 names this backend for what has a setup.py alone.
_LEGACY = "setuptools.build_meta:__legacy__"
# Older setup.py files need `wheel` and do not always say so.
_SETUPTOOLS = ("setuptools", "wheel")
_FRONTEND = "pip"
# Many an old setup.py imports pkg_resources without declaring it, and newer setuptools have none.
PKG_RESOURCES, WITH_PKG_RESOURCES = "pkg_resources", "setuptools<81"
# A setup.py imports few modules that it does not declare, and each costs one more question.
_UNDECLARED = 4
_PATIENCE_S = 300.0
# The variables of this process that a build backend sees: not the user's tokens, and nothing that changes its answer.
_SEEN = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT",
    "USERPROFILE", "APPDATA", "LOCALAPPDATA",
)  # fmt: skip
_HOOK = """
import importlib, json, os, sys
top, backend, paths, answer, seen = json.loads(sys.argv[1])
for name in [each for each in os.environ if each.upper() not in seen]:
    del os.environ[name]
os.chdir(top)
sys.path[:0] = [os.path.join(top, each) for each in paths]
module, _, attributes = backend.partition(":")
found = importlib.import_module(module)
for name in filter(None, attributes.split(".")):
    found = getattr(found, name)
more = getattr(found, "get_requires_for_build_wheel", lambda settings: [])(None)
with open(answer, "w") as file:
    json.dump([str(each) for each in more], file)
"""

Found = dict[str, Any]
Start = Callable[..., subprocess.CompletedProcess[str]]
Solve = Callable[..., UvResult]
"""Resolves the requirements of a project, with more flags and `limits` as constraints; `lines` replace them."""


def prefer_wheels(first: Found, solve: Solve, platform: str, minor: str) -> tuple[Found, list[str]]:
    """Return a solution without source distributions of what has wheels elsewhere, and sentences about what changed."""

    def prereleases(found: Found) -> set[str]:
        return {name for name, package in _by_name(found).items() if Version(str(package["version"])).is_prerelease}

    older = f"3.{int(minor.split('.')[1]) - 1}"
    best, flags, looked = first, list[str](), set[str]()
    for _ in range(_ROUNDS):
        versions = {
            name: str(package["version"])
            for name, package in _by_name(best).items()
            if name not in looked and "sdist" in package and not package.get("wheels")
        }
        if not versions:
            break
        looked |= versions.keys()
        lines = [f"{name}=={version}" for name, version in versions.items()]
        # One at a time if need be: another package may want this very version, which then is compiled.
        # uv leaves out wheels for an older Python, so it is asked for that, too: a new Python has few wheels at first.
        everywhere = [
            _by_name(solve(ANYWHERE, "--no-deps", "--python-version", version, lines=lines).found)
            for version in (minor, older)
        ]
        elsewhere = sorted({name for found in everywhere for name, package in found.items() if package.get("wheels")})
        for names in [elsewhere, *([name] for name in elsewhere if len(elsewhere) > 1)]:
            more = [*flags, *(word for name in names for word in ("--only-binary", name))]
            found = solve(*more).found if names and not {*names} <= {*flags} else {}
            if found and not prereleases(found) - prereleases(first):
                best, flags = found, more
    before, after, sentences = _by_name(first), _by_name(best), list[str]()
    forced = {*flags} & before.keys()
    for name, package in before.items():
        if name in after and after[name]["version"] != package["version"]:
            culprits = [name] if name in forced else sorted(forced)
            why = " and ".join(f"{culprit} {before[culprit]['version']} has no wheel" for culprit in culprits)
            change = f"{name} {after[name]['version']} instead of {package['version']}"
            sentences.append(f"{change}: {why} for Python {minor} on {platform}")
    return best, sentences


def failed_build(text: str) -> str:
    """Return the package that uv could not build here, "gym==0.21.0", to read what it depends on; "" if none."""
    found = _FAILED.search(text)
    return "==".join(filter(None, found.groups())) if found else ""


def way_to_a_wheel(text: str) -> str:
    """Return what to do about what uv says to be only there as source; "" if it says nothing of the kind."""
    failed = failed_build(text)
    if not (failed or _NO_WHEEL.search(text)):
        return ""
    newer = "name a newer version, which pip can read; or " if failed else ""
    return (
        f"{newer}build its wheel once, `pip wheel --no-deps {failed or 'NAME'} -w wheels`, and add the line "
        "`--find-links wheels` (in pyproject.toml, `find-links` below [tool.uv]); or take conda's package of it, in an "
        "environment.yml"
    )


def _by_name(found: Found) -> dict[str, Mapping[str, Any]]:
    return {normalize(str(package["name"])): package for package in found.get("packages", []) if "version" in package}


def resolve_builds(
    package: LockedPackage,
    folder: Path,
    indexes: Sequence[tuple[str, str]],
    solve: Solve,
    chosen: Mapping[str, str],
    start: Start,
) -> UvResult:
    """Return the wheels that build a source distribution: in the versions of the environment, if it admits those.

    Args:
        folder: A new one, for its files.
        indexes: As for `download_packages`, which raises if it cannot be downloaded.
        chosen: name -> version of the packages of the environment.
        start: Starts a program by uv, with the settings of the project.
    """
    ((_, path),) = download.download_packages([package], lambda *_: None, indexes)
    folder.mkdir()
    is_zip = package.file.endswith(".zip")
    safe: Mapping[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") and not is_zip else {}
    try:
        shutil.unpack_archive(path, folder, "zip" if is_zip else "tar", **safe)
    except (OSError, tarfile.TarError, ValueError) as error:
        raise LockError(f"{package.file} cannot be read: {error}", hint="name another version of it") from error
    inside = list(folder.iterdir())
    wheels_only = ("--only-binary", ":all:")
    # Mostly one folder has its files.
    top = inside[0] if len(inside) == 1 and inside[0].is_dir() else folder
    lines = [*_requirements(top, chosen, start), _FRONTEND]
    same = solve(*wheels_only, lines=lines, limits=[f"{name}=={version}" for name, version in chosen.items()])
    return solve(*wheels_only, lines=lines) if same.status else same


def _requirements(top: Path, chosen: Mapping[str, str], start: Start) -> list[str]:
    pyproject = top / PYPROJECT
    system = load_toml(pyproject).get("build-system", {}) if pyproject.is_file() else {}
    requires = [str(requirement) for requirement in system.get("requires", _SETUPTOOLS)]
    if any(requirement.startswith("setuptools") for requirement in requires):
        requires = list(dict.fromkeys([*requires, "wheel"]))
        setup = top / "setup.py"
        old = setup.is_file() and PKG_RESOURCES in setup.read_text(encoding="utf-8", errors="replace")
        requires += [WITH_PKG_RESOURCES] if old else []
    for _ in range(_UNDECLARED):
        more, lacking = _ask_backend(system, requires, top, start)
        if lacking not in chosen or lacking in requires:
            break
        # Some count on an environment that has the module already: flash-attn on torch.
        requires.append(lacking)
        if lacking in TORCHES:
            # PyTorch has gigabytes, too many for a question.
            break
    return [*requires, *more]


def _ask_backend(system: Mapping[str, Any], requires: Sequence[str], top: Path, start: Start) -> tuple[list[str], str]:
    """Ask the backend what it wants in addition, where this machine has nothing of it: no cmake, no compiler.

    Return also the module that is missing if it cannot say. It then says on the host what else it lacks.
    """
    answer = top.parent / "answer.json"
    given = [str(top), system.get("build-backend", _LEGACY), system.get("backend-path", []), str(answer), _SEEN]
    words = [word for requirement in requires for word in ("--with", requirement)]
    try:
        done = start([*words, "python", "-I", "-c", _HOOK, json.dumps(given)], timeout=_PATIENCE_S)
        missing = re.search(r"No module named '([\w-]+)", done.stderr)
        if done.returncode:
            return [], normalize(missing[1]) if missing else ""
        return [str(text) for text in json.loads(answer.read_text(encoding="utf-8"))], ""
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return [], ""
