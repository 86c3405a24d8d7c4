"""Find packages that uv takes in an old version, or before a release, only because another one has no wheel.

pip would build that one from source. Nothing is built here, and nothing goes years back without a word: the lock stops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from clusterfn.environment.project import normalize
from clusterfn.environment.uv import UvResult

# Resolves lines with more flags, and returns what uv says and chooses.
Resolve = Callable[[Sequence[str], Sequence[str]], "tuple[UvResult, Mapping[str, Any]]"]

_PRERELEASE = re.compile(r"\d(?:a|b|rc|\.dev)\d")
_NO_WHEEL = re.compile(r"no (?:usable )?wheels|building from source is disabled|Wheels are required for")
_CULPRIT = re.compile(r"Wheels are required for `([^`]+)`|Because (?:all versions of )?([\w.-]+)\S* ha(?:s|ve) no")
_OLD_DAYS = 365
_MOST = 8  # so many are looked at, a fraction of a second each


def find_culprit(found: Mapping[str, Any], again: Resolve, alone: Resolve) -> tuple[str, list[str]]:
    """Return what would be taken instead of what, and uv's reasons; two empty values if nothing is amiss.

    Args:
        found: What uv has chosen.
        again: Resolves the same requirements with more constraints and flags.
        alone: Resolves lines without the requirements.
    """
    chosen = {normalize(str(each["name"])): each for each in found.get("packages", []) if "wheels" in each}
    early = [name for name, each in chosen.items() if _PRERELEASE.search(str(each.get("version", "")))]
    if early:
        reply, _ = again([], ["--prerelease", "disallow"])
        if reply.status and names_no_wheel(reply.text):
            return f"{_named(chosen[early[0]])}, which is no release, although a release exists", reply.lines
    _, latest = alone(sorted(chosen), ["--no-deps"])
    ages = {each["name"]: _days_between(_entry(chosen, each), each) for each in latest.get("packages", [])}
    older = [each for each in latest.get("packages", []) if ages[each["name"]] >= _OLD_DAYS]
    pins = {str(each["name"]): f"{each['name']}=={each['version']}" for each in older}
    if not pins or alone(list(pins.values()), [])[0].status == 0:  # their newest versions need nothing without a wheel
        return "", []
    for other in sorted(older, key=lambda each: -ages[each["name"]])[:_MOST]:
        entry = _entry(chosen, other) or other
        reply, _ = again([pins[other["name"]]], [])
        if reply.status and names_no_wheel(reply.text):
            return f"{_named(entry)} instead of {other['version']}", reply.lines
    return "", []


def names_no_wheel(text: str) -> bool:
    """Whether uv says that something is only there as source."""
    return bool(_NO_WHEEL.search(text))


def way_to_a_wheel(text: str) -> str:
    """Return what to do about what uv says to be only there as source.

    Example:
        >>> way_to_a_wheel("hint: Wheels are required for `gym` because building from source is disabled")[:58]
        'build its wheel once, `pip wheel --no-deps gym -w wheels`,'
    """
    text = " ".join(text.split())  # uv breaks its lines where the terminal of the program ends
    found = _CULPRIT.search(text)
    name = next(filter(None, found.groups()), "NAME") if found else "NAME"
    wanted = re.search(rf"depends on ({re.escape(name)}[<>=!~][^\s]*?),?\s", f"{text} ")
    name = f"'{wanted[1]}'" if wanted else name
    return (
        f"build its wheel once, `pip wheel --no-deps {name} -w wheels`, and add the line `--find-links wheels` (in "
        "pyproject.toml, `find-links` below [tool.uv]); or take conda's package of it, in an environment.yml"
    )


def _entry(chosen: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return chosen.get(normalize(str(other["name"])))


def _named(entry: Mapping[str, Any]) -> str:
    year = _time(entry)
    return f"{entry['name']} {entry['version']}" + (f" of {year.year}" if year else "")


def _days_between(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> int:
    """Return by how many days one is older; many where the index does not tell when its files came."""
    if old is None or old.get("version") == new.get("version"):
        return -1
    before, after = _time(old), _time(new)
    return (after - before).days if before and after else _OLD_DAYS


def _time(entry: Mapping[str, Any]) -> datetime | None:
    times = [each["upload-time"] for each in entry.get("wheels", []) if isinstance(each.get("upload-time"), datetime)]
    return max(times, default=None)
