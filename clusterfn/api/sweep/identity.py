"""What makes a sweep the same as one before: its function, configurations, seed and way of scoring. Pure.

Written as the first line of a journal, and compared with it when a sweep is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clusterfn.api.sweep.fingerprint import Unstable, fingerprint
from clusterfn.api.sweep.space import ConfigurationList, Grid
from clusterfn.config.options import Options
from clusterfn.environment import existing

_LONG = 200
_COMPARED = ("function", "max_configs", "sampler", "seed", "score", "minimize")


def code_of(function: Callable[..., Any], options: Options) -> str | None:
    """A digest of a function and of the environment that its decorator names; None where there can be none."""
    try:
        return fingerprint(function, _environment(options), options.modules, sorted(options.env.items()))
    except Unstable:
        return None


def _environment(options: Options) -> tuple[str | None, tuple[str, ...]]:
    """What the decorator says; of a file what it asks for, as the same file may ask for something else tomorrow."""
    text = options.environment
    if options.packages or existing.is_existing(text):
        return text, options.packages
    from clusterfn.environment import resolve  # it, and what it needs, takes time to import

    return resolve.read_specification(text, ()).input_hash, ()


def describe(space: Grid | ConfigurationList) -> dict[str, dict[str, Any]]:
    """The configurations for a reader, and as digests; each key apart."""
    if isinstance(space, ConfigurationList):
        parts: dict[str, Any] = {"configurations": [dict(sorted(each.items())) for each in space.configurations]}
    else:
        parts = {key: space.drawn.get(key) or list(space.values[key]) for key in space.keywords()}
    return {
        "space": {key: _short(value) for key, value in parts.items()},
        "digests": {key: _digest(value) for key, value in parts.items()},
    }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _digest(value: Any) -> str | None:
    try:
        return fingerprint(value)
    except Unstable:
        return None


def score_of(by: Any) -> str | None:
    """A way of scoring as one word."""
    return (_digest(by) or "a function") if callable(by) else by


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What two first lines of a journal say differently of what was to be done, in words.

    Args:
        before: What stands in the journal.
        now: What is asked for.
    """
    found = [f"{key}: {before.get(key)} there, {now[key]} here" for key in _COMPARED if before.get(key) != now[key]]
    if before.get("code") and now["code"] and before["code"] != now["code"]:
        found.append(_other_code(before, now))
    here, there = now["digests"], before.get("digests", {})
    return found + [
        f"{key}: {_told(before, key)} there, {_told(now, key)} here"
        for key in dict.fromkeys([*there, *here])
        if there.get(key) != here.get(key)
    ]


def _other_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Why two digests of the code differ: the same file has another one as `__main__` than as a module."""
    name, modules = now["function"], (before.get("module"), now["module"])
    if modules[0] == modules[1] or "__main__" not in modules:
        return f"code: what {name} or anything that it calls does has changed since"
    return (
        f"module: {name} of {modules[0]} there, of {modules[1]} here; whether its code is the same cannot be seen, "
        "so start the sweep as before: run the file as a script, or import it"
    )


def _told(facts: Mapping[str, Any], key: str) -> str:
    return str(facts.get("space", {}).get(key, "nothing"))
