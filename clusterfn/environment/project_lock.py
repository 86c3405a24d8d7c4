"""Write the lock of a project: its Python, with what belongs to it if a channel has it, and the wheels that uv found.

It has the same format as every other lock, so that building it needs nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from clusterfn.environment import lock as locks
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.wheel_files import Wheel

# conda's Python brings them as packages, and two packages must not have the same files.
_OF_PYTHON = ("pip", "setuptools", "wheel")

Row = Mapping[str, Any]


def read_rows(path: Path, platform: str, manager: str = "") -> list[Row]:
    """Return the packages of a lock for a platform as the file has them; those of one manager, if it is named."""
    return [row for row in rows_of(path.read_bytes(), platform) if manager in ("", row["manager"])]


def rows_of(data: bytes, platform: str) -> list[Row]:
    """Return the packages for a platform in the content of a lock."""
    return [row for row in _tree(data)["package"] if row["platform"] == platform]


def with_wheels(data: bytes, found: Mapping[str, Sequence[Wheel]]) -> bytes:
    """Return the content of a lock with wheels for some of its platforms."""
    tree = _tree(data)
    tree["package"] += [_wheel_row(each, platform) for platform, wheels in found.items() for each in wheels]
    return _written(tree)


def _wheel_row(wheel: Wheel, platform: str) -> Row:
    hashes = {"sha256": wheel.sha256} if wheel.sha256 else {}
    return _row(wheel.name, wheel.version, locks.WHEEL, platform, wheel.url, hashes)


def python_alone(package: LockedPackage, source: str) -> bytes:
    """Return a lock that has only a Python, which comes from no channel.

    Args:
        source: The name of the project's file.
    """
    hashes = {"sha256": package.sha256} if package.sha256 else {}
    metadata = {"content_hash": {}, "channels": [], "platforms": [package.platform], "sources": [source]}
    row = _row(package.name, package.version, package.manager, package.platform, package.url, hashes)
    return yaml.safe_dump({"version": locks.FORMAT, "metadata": metadata, "package": [row]}, width=10_000).encode()


def compose(
    python: bytes,
    wheels: Sequence[Wheel],
    platform: str,
    before: EnvironmentLock | None,
    input_hash: str,
    virtual: Mapping[str, str],
    unasked: str = "",
) -> bytes:
    """Return the content of a lock.

    Args:
        python: A lock that has the platform's Python; its wheels are left out.
        before: A lock whose other platforms stay.
        virtual: What is assumed of the host.
        unasked: Why its Python is the host's own, if the user did not ask for that.
    """
    tree = _tree(python)
    ours = {wheel.name for wheel in wheels}
    rows = [row for row in tree["package"] if row["platform"] == platform and row["manager"] != locks.WHEEL
            and not (row["name"] in _OF_PYTHON and row["name"] in ours)]  # fmt: skip
    rows += [_wheel_row(each, platform) for each in wheels]
    kept = [each for each in before.platforms if each != platform] if before else []
    rows += [row for each in kept if before for row in read_rows(before.path, each)]
    supposed = {each: before.virtual_packages(each) for each in kept if before}
    metadata = tree["metadata"]
    metadata["platforms"] = [platform, *kept]
    metadata["content_hash"] = dict.fromkeys([platform, *kept], input_hash)
    metadata["custom_metadata"] = locks.custom_metadata(input_hash, {**supposed, platform: virtual})
    metadata["custom_metadata"].update({locks.UNASKED: unasked} if unasked else {})
    content = {"version": locks.FORMAT, "metadata": metadata, "package": rows}
    return _written(content)


def _written(tree: Mapping[str, Any]) -> bytes:
    return _HEADER + yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=10_000).encode()


_HEADER = b"# Written by clusterfn: packages of conda, and wheels chosen by uv. Commit this file.\n"


def _tree(data: bytes) -> dict[str, Any]:
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return dict(yaml.load(data, Loader=loader))


def _row(name: str, version: str, manager: str, platform: str, url: str, hashes: Mapping[str, str]) -> Row:
    return {
        "name": name, "version": version, "manager": manager, "platform": platform, "dependencies": {}, "url": url,
        "hash": hashes, "category": "main", "optional": False,
    }  # fmt: skip
