"""Read TOML files, each once until it changes."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

from clusterfn.config.text_file import read_text
from clusterfn.errors import ConfigError


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, once until it changes: every call of a function reads its environment's files.

    Raises:
        ConfigError: It cannot be read, or is no TOML; with its line.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="correct its name or its mode") from error
    return _parsed(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _parsed(path: Path, mtime_ns: int, size: int) -> dict[str, Any]:
    try:
        toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:  # Python 3.9 and 3.10 have no reader of their own
        raise ConfigError(
            f"reading {path.name} needs tomli on Python older than 3.11", hint="pip install 'tomli>=2'"
        ) from error
    try:
        return dict(toml.loads(read_text(path, only="utf-8")))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="correct that line") from error
