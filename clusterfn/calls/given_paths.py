"""Paths of a host in a value that a call returned, as the caller wrote them."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any


def as_given(value: Any, caller_paths: Mapping[str, pathlib.PurePath]) -> Any:
    """Return a value with the caller's own paths in place of the host's paths of the same files.

    Texts and paths are looked at, alone and in built-in containers, keys included. Only a whole path is replaced: that
    of a File or Directory which was an argument, or one below such a Directory.

    Args:
        caller_paths: Path on the host -> path here.
    """
    # By their ids; they are held, so that no new object gets the id of an earlier one. Lists and dicts stay the same.
    seen: dict[int, Any] = {}

    def given(value: Any) -> Any:
        kind = type(value)
        if kind is str or issubclass(kind, pathlib.PurePath):
            here = _here(str(value), caller_paths)
            if here is None:
                return value
            return str(here) if isinstance(value, str) else pathlib.Path(here)
        if kind in (tuple, set, frozenset):
            return kind(map(given, value))
        if kind in (list, dict) and id(value) not in seen:
            seen[id(value)] = value
            if kind is list:
                value[:] = map(given, value)
            else:
                pairs = [(given(key), given(item)) for key, item in value.items()]
                value.clear()
                value.update(pairs)
        return value

    return given(value)


def _here(text: str, caller_paths: Mapping[str, pathlib.PurePath]) -> pathlib.PurePath | None:
    for remote, here in caller_paths.items():
        if text == remote or text.startswith(f"{remote}/"):
            return here / text[len(remote) + 1 :]
    return None
