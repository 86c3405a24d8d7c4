"""The wheel by which a host's old Python reads .conda packages, from the table in `zstd.yml`."""

from __future__ import annotations

from pathlib import Path

import yaml

from clusterfn.environment.lock import Package

TABLE = Path(__file__).with_name("zstd.yml")


def wheel(python: tuple[int, ...], machine: str) -> Package | None:
    """The `zstandard` wheel for an interpreter; None if the table has none.

    Args:
        python: (major, minor, …) of the host's Python.
        machine: As uname says it.

    Example:
        >>> wheel((3, 6, 8), "x86_64").version
        '0.20.0'
    """
    tag = f"cp{python[0]}{python[1]}"
    for row in yaml.safe_load(TABLE.read_text(encoding="utf-8")):
        if (row["python"], row["machine"]) == (tag, machine):
            return Package("zstandard", row["version"], "", "pip", row["file"], row["url"], row["sha256"], machine)
    return None
