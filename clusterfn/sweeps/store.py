"""Values on this machine's disk, each in a file of its own that is whole or missing.

Serves the cache, where a file is named by what was called with what, and the journal, where it is named by the
configuration. What cannot be read costs a line and is computed again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfn.bridge.supervisor.text import counted, format_size
from clusterfn.config import places
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.hosts import serialization
from clusterfn.sweeps.journal import SweepJournal

_SUFFIX, _BESIDE = ".pkl", ".values"
# As long as hosts keep jobs by default.
_KEEP_S = 14 * 86400.0


@dataclass(frozen=True)
class Kept:
    """A value and how long it took."""

    value: Any
    seconds: float


class Store:
    """A folder of values.

    Args:
        folder: Created if it does not exist.

    Raises:
        ConfigError: It cannot be made, or belongs to another user: to load a value may run any code.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            ours = places.is_ours(folder.lstat()) and places.is_ours(folder.stat())
        except OSError as error:
            raise ConfigError(f"{folder} cannot hold cached values: {error}") from error
        if not ours:
            problem = f"{folder} belongs to another user, whose code could run when clusterfn loads a value from it"
            raise ConfigError(problem, hint="name a folder of your own")

    def get(self, key: str, name: str) -> Kept | None:
        """Return what was kept under that key; None if there is nothing, or, with a message, nothing readable."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            with path.open("rb") as file:
                if not places.is_ours(os.fstat(file.fileno())):
                    raise PermissionError("it belongs to another user")
                value, seconds = serialization.part("container").loads(file.read())
            return Kept(value, float(seconds))
        except Exception as error:  # noqa: BLE001 - loading a value runs code of the user's
            console.warn(f"the value of {name} cannot be read ({_in_one_line(error)}) and is computed again: {path}")
            return None

    def put(self, key: str, kept: Kept) -> None:
        """Keep a value; where that fails, it is said."""
        path = self._path(key)
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
        try:
            with part.open("xb") as file:
                # Windows has no fchmod.
                os.fchmod(file.fileno(), 0o600) if hasattr(os, "fchmod") else None
                serialization.part("container").dump((kept.value, kept.seconds), file)
            part.replace(path)
        except Exception as error:  # noqa: BLE001 - pickling a value runs code of the user's
            console.tell(f"a value cannot be cached ({_in_one_line(error)}): {path}")
            with contextlib.suppress(OSError):
                part.unlink()

    def in_words(self) -> str:
        """Say how many values there are, how large, and where."""
        sizes = [path.stat().st_size for path in self.folder.glob(f"*{_SUFFIX}")]
        return f"{counted(len(sizes), 'result')}, {format_size(sum(sizes))}, in {self.folder}"

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def beside(journal: Path) -> Path:
    """Return the folder with the values of a journal."""
    return journal.with_name(f"{journal.name}{_BESIDE}")


def forget(journal: Path) -> None:
    """Remove the values of a journal; what it says stays."""
    shutil.rmtree(beside(journal), ignore_errors=True)


def forget_old(folder: Path) -> None:
    """Forget the journals of a folder that no sweep has used for two weeks."""
    for values in folder.glob(f"*{_BESIDE}"):
        journal = values.with_name(values.name[: -len(_BESIDE)])
        with contextlib.suppress(ConfigError, OSError):
            # Another process has the journal open, or the journal is gone by now.
            if time.time() - journal.stat().st_mtime > _KEEP_S:
                with SweepJournal(journal):
                    forget(journal)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:120]
