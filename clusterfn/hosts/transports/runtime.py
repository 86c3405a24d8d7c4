"""The folder of this user's sockets and records of held connections: the user's alone, and on this machine alone.

It has a short, fixed name, for a socket's path may have 104 bytes, and a login in one window is to be found by a
program that was started without that window's variables.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path

from clusterfn.errors import ConfigError

VARIABLE = "CLUSTERFN_RUNTIME"
_LEFT_S = 86400.0
_LONGEST = 67  # of its path; with a socket's name and what ssh appends it is 103


def folder() -> Path:
    """The folder; it exists, and nobody else may look into it.

    Raises:
        ConfigError: Somebody else has made it, others may use it, or it cannot be made.
    """
    path = _where()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:  # something else has that name
        _refuse_shared(path)
    except OSError as error:
        raise unwritable(error) from error
    _refuse_shared(path)
    return path


def scratch(prefix: str) -> Path:
    """A new folder in it, for whoever calls to remove; what killed programs left there goes after a day.

    Raises:
        ConfigError: It cannot be made.
    """
    inside = folder()
    for old in inside.glob("*-*"):
        with contextlib.suppress(FileNotFoundError):  # another program tidies up too
            if old.is_dir() and time.time() - old.stat().st_mtime > _LEFT_S:
                shutil.rmtree(old, ignore_errors=True)
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=inside))
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> ConfigError:
    """Nothing can be written there: the disk is full, or the folder cannot be made."""
    return ConfigError(
        f"{_where()}, where sockets and records of logins lie, cannot be written to: {error.strerror}",
        hint=f"mend that, or set {VARIABLE} to another folder of your own with a short path",
    )


def is_there() -> bool:
    """Whether there is such a folder. One that is somebody else's counts as none: it is in nobody's way."""
    try:
        _refuse_shared(_where())
    except (OSError, ConfigError):
        return False
    return _where().is_dir()


def _where() -> Path:
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "clusterfn" / "held"
    return Path("/tmp") / f"clusterfn-{os.getuid()}"  # TMPDIR differs between the programs of one user


def _refuse_shared(path: Path) -> None:
    if sys.platform == "win32":  # what lies below LOCALAPPDATA is the user's alone
        return
    if len(os.fsencode(path)) > _LONGEST:
        raise ConfigError(f"{path} is too long for a folder of sockets", hint=f"set {VARIABLE} to a short path")
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{path} is not a folder of yours alone, and connections that are logged in must lie in one",
            evidence=[f"owner {found.st_uid}, mode {stat.filemode(found.st_mode)}"],
            hint=f"remove it, or set {VARIABLE} to a folder of your own with a short path",
        )
