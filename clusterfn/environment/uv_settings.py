"""Whether uv's own settings say where packages are: those of the project, of this user, and of its variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterfn.environment.local_packages import workspace_root
from clusterfn.environment.toml_file import load_toml

_MORE = ("UV_INDEX", "UV_EXTRA_INDEX_URL")
_DEFAULT = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")


def names_indexes(folder: Path) -> tuple[bool, bool]:
    """Return whether they name an index that every package may come from, and whether one replaces PyPI.

    Args:
        folder: Of the project.

    Raises:
        ConfigError: One of the files is no TOML.
    """
    tables = list(_tables(folder))
    tables += [{**each["pip"]} for each in tables if isinstance(each.get("pip"), Mapping)]
    indexes = [each for table in tables for each in table.get("index") or () if isinstance(each, Mapping)]
    has_default = any(each.get("default") for each in indexes) or any("index-url" in table for table in tables)
    open_to_all = any(not each.get("explicit") and not each.get("default") for each in indexes)
    has_more = open_to_all or any("extra-index-url" in table for table in tables)
    return (
        has_more or has_index_variables(),
        has_default or any(map(os.environ.get, _DEFAULT)),
    )


def has_index_variables() -> bool:
    """Whether this user's variables name an index to uv that every package may come from."""
    return any(map(os.environ.get, _MORE))


def _tables(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield uv's settings in the order in which uv looks for them."""
    if os.environ.get("UV_CONFIG_FILE"):
        yield load_toml(Path(os.environ["UV_CONFIG_FILE"]))
        return
    root = workspace_root(folder)  # uv begins there, and does not read the settings of a member
    for place in [root, *root.absolute().parents]:
        if (place / "uv.toml").is_file():
            yield load_toml(place / "uv.toml")
            break
        if (place / "pyproject.toml").is_file():
            table = load_toml(place / "pyproject.toml").get("tool", {}).get("uv")
            if isinstance(table, dict):
                yield table
                break
    for path in _own_files():
        if path.is_file():
            yield load_toml(path)


def _own_files() -> Iterator[Path]:
    """Yield the files of this user and of this machine."""
    if sys.platform == "win32":
        yield Path(os.environ.get("APPDATA", "~")).expanduser() / "uv" / "uv.toml"
        yield Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "uv" / "uv.toml"
        return
    yield Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "uv" / "uv.toml"
    yield Path("/etc/uv/uv.toml")
