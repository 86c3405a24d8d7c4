"""Judge the versions that uv chooses: take wheels where an older version has them.

uv resolves as pip does, so the newest version counts, even if it is only there as source. What was never published as
a wheel is built. A version that has wheels, though none for the host, is mostly large and hard to compile (numpy 2.4 on
an old glibc): then the newest version with a wheel for the host is better.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from packaging.version import Version

from clusterfn.environment.project import normalize
from clusterfn.environment.uv import UvResult

ANYWHERE = "--universal"
_NO_WHEEL = re.compile(r"no (?:usable )?wheels|building from source is disabled|Wheels are required for")
_FAILED = re.compile(r"Failed to (?:build|download and build) `([^`=@ ]+)(?:==([^`]+))?")
_ROUNDS = 3  # another version of one package may bring another source distribution

Found = dict[str, Any]


# Takes more flags of uv, and perhaps `lines=` instead of the project's requirements and `limits=` as constraints.
Solve = Callable[..., UvResult]


def prefer_wheels(first: Found, solve: Solve, platform: str, minor: str) -> tuple[Found, list[str]]:
    """Return a solution without source distributions of what has wheels elsewhere, and sentences about what changed.

    Args:
        platform: The host's, as uv names it.
        minor: Of Python, "3.11".
    """
    older = f"3.{int(minor.split('.')[1]) - 1}"
    best, flags = first, list[str]()
    looked: set[str] = set()
    for _ in range(_ROUNDS):
        lines = [f"{name}=={each['version']}" for name, each in _by_name(best).items()
                 if name not in looked and "sdist" in each and not each.get("wheels")]  # fmt: skip
        if not lines:
            break
        looked |= {line.partition("==")[0] for line in lines}
        # One at a time if need be: another package may want this very version, which then is compiled.
        # uv leaves out wheels for an older Python, so it is asked for that, too: a new Python has few wheels at first.
        everywhere = [_by_name(solve(ANYWHERE, "--no-deps", "--python-version", each, lines=lines).found)
                      for each in (minor, older)]  # fmt: skip
        elsewhere = sorted({name for found in everywhere for name, each in found.items() if each.get("wheels")})
        for names in [elsewhere, *([name] for name in elsewhere if len(elsewhere) > 1)]:
            more = [*flags, *(word for name in names for word in ("--only-binary", name))]
            found = solve(*more).found if names and not {*names} <= {*flags} else {}
            if found and not _prereleases(found) - _prereleases(first):
                best, flags = found, more
    before, after = _by_name(first), _by_name(best)
    forced = {*flags} & before.keys()
    sentences = []
    for name, each in before.items():
        if name in after and after[name]["version"] != each["version"]:
            culprits = [name] if name in forced else sorted(forced)
            why = " and ".join(f"{culprit} {before[culprit]['version']} has no wheel" for culprit in culprits)
            change = f"{name} {after[name]['version']} instead of {each['version']}"
            sentences.append(f"{change}: {why} for Python {minor} on {platform}")
    return best, sentences


def failed_build(text: str) -> str:
    """Return the package that uv could not build here, to read what it depends on; "" if it says nothing of the kind.

    Example:
        >>> failed_build("error: Failed to build `gym==0.21.0`")
        'gym==0.21.0'
    """
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
    return {normalize(str(each["name"])): each for each in found.get("packages", []) if "version" in each}


def _prereleases(found: Found) -> set[str]:
    return {name for name, each in _by_name(found).items() if Version(str(each["version"])).is_prerelease}
