"""Write the lock of a project: Python and what belongs to it from a channel, and the wheels that uv found.

It has the same format as every other lock, so that building it needs nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from clusterfn.environment import lock as locks
from clusterfn.environment.lock import EnvironmentLock
from clusterfn.environment.wheels import Wheel

# conda's Python brings them as packages, and two packages must not have the same files.
_OF_PYTHON = ("pip", "setuptools", "wheel")

Row = Mapping[str, Any]


def read_rows(path: Path, platform: str, manager: str = "") -> list[Row]:
    """Return the packages of a lock for a platform as the file has them; those of one manager, if it is named."""
    tree = _tree(path.read_bytes())
    return [row for row in tree["package"] if row["platform"] == platform and manager in ("", row["manager"])]


def compose(
    python: bytes,
    wheels: Sequence[Wheel],
    platform: str,
    before: EnvironmentLock | None,
    input_hash: str,
    virtual: Mapping[str, str],
) -> bytes:
    """Return the content of a lock.

    Args:
        python: A lock that has the platform's Python; its wheels are left out.
        before: A lock whose other platforms stay.
        virtual: What is assumed of the host.
    """
    tree = _tree(python)
    ours = {wheel.name for wheel in wheels}
    rows = [row for row in tree["package"] if row["platform"] == platform and row["manager"] == "conda"
            and not (row["name"] in _OF_PYTHON and row["name"] in ours)]  # fmt: skip
    rows += [_row(wheel, platform) for wheel in wheels]
    kept = [each for each in before.platforms if each != platform] if before else []
    rows += [row for each in kept if before for row in read_rows(before.path, each)]
    supposed = {each: before.virtual_packages(each) for each in kept if before}
    metadata = tree["metadata"]
    metadata["platforms"] = [platform, *kept]
    metadata["content_hash"] = dict.fromkeys([platform, *kept], input_hash)
    metadata["custom_metadata"] = locks.custom_metadata(input_hash, {**supposed, platform: virtual})
    content = {"version": locks.FORMAT, "metadata": metadata, "package": rows}
    return _HEADER + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000).encode()


_HEADER = b"# Written by clusterfn: Python from a conda channel, wheels chosen by uv. Commit this file.\n"


def _tree(data: bytes) -> dict[str, Any]:
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return dict(yaml.load(data, Loader=loader))


def _row(wheel: Wheel, platform: str) -> Row:
    return {
        "name": wheel.name, "version": wheel.version, "manager": "pip", "platform": platform, "dependencies": {},
        "url": wheel.url, "hash": {"sha256": wheel.sha256} if wheel.sha256 else {}, "category": "main",
        "optional": False,
    }  # fmt: skip
