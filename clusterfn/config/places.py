"""Where to look for clusterfn.yml, which owner's file to obey, and the folders of this user's own records.

Opens no file.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from clusterfn.errors import ConfigError

FILE = "clusterfn.yml"
VARIABLE = "CLUSTERFN_CONFIG"
# Names that users write by mistake. An error helps more than a file that is ignored without a message.
_MISNAMED = ("clusterfn.yaml", "Clusterfn.yml", ".clusterfn.yml")
# Files of root count as the user's own, because administrators install them for all users.
ROOT_UID = 0
# Programs such as pytest are installed in these folders. Users run them, so their folder says nothing about a project.
_TOOLS = ("site-packages", "dist-packages")


def file_of_variable() -> Path | None:
    """Return the file that the variable names; raise ConfigError if there is none."""
    text = os.environ.get(VARIABLE)
    path = expanded(text) if text else None
    if path is not None and not path.is_file():
        raise ConfigError(f"${VARIABLE}={text} is not a file", hint="correct the path, or unset the variable")
    return path


def find_file(start: Path, script: Path | None) -> Path | None:
    """Return the file that holds in the folder `start`, for a program that is the file `script`.

    Raises:
        ConfigError: It belongs to another user, or there is none but one of nearly the right name.
    """
    # The script is usually below the working directory, so most folders come twice.
    folders = list(dict.fromkeys(_folders(start, script)))
    for path in (folder / FILE for folder in folders):
        if _is_file(path):
            reject_others(path, path.stat())
            return path
    for path in (folder / name for folder in folders for name in _MISNAMED):
        if _is_file(path) and is_ours(path.stat()):
            raise ConfigError(f"found {path}: it must be named {FILE}", hint=f"rename it: {path.with_name(FILE)}")
    return None


def expanded(path: str | Path) -> Path:
    """Expand `~` and `~user` in a path of this machine.

    Raises:
        ConfigError: There is no such user, or this one has no home, as in a container that runs with any number.
    """
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError) as error:
        user = Path(path).parts[0]
        if user == "~":
            problem = "you have no home folder: HOME is not set, and this machine has no account with your number"
            raise ConfigError(problem, hint="export HOME=/a/folder/that/you/can/write/to") from error
        problem = f"{path}: this machine has no user {user[1:]}"
        raise ConfigError(problem, hint="correct the path, or write it in full") from error


def running_script() -> Path | None:
    """Return the file that Python was started with; None in a notebook, at a prompt, and for an installed command."""
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    if not name or not _is_file(Path(name)):
        return None
    path = Path(name).resolve()
    commands = Path(sysconfig.get_path("scripts")).resolve()
    installed = commands in path.parents or any(part in _TOOLS for part in path.parts)
    return None if installed else path


def _folders(start: Path, script: Path | None) -> Iterator[Path]:
    for here in (start.absolute(), script.resolve().parent if script else None):
        if here is not None:
            yield from (here, *here.parents)
    home = expanded("~")
    yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "clusterfn"
    if sys.platform == "darwin":
        yield home / "Library" / "Application Support" / "clusterfn"
    if os.environ.get("APPDATA"):
        yield Path(os.environ["APPDATA"]) / "clusterfn"


def state_folder() -> Path:
    """Return the folder of what clusterfn remembers for this user, by the custom of the platform. It need not exist."""
    return _own_folder("XDG_STATE_HOME", ".local/state", "Library/Application Support")


def cache_folder() -> Path:
    """Return the folder of what can be fetched or made again, by the custom of the platform. It need not exist."""
    folder = _own_folder("XDG_CACHE_HOME", ".cache", "Library/Caches")
    return folder / "cache" if sys.platform == "win32" else folder


def _own_folder(variable: str, usual: str, of_mac: str) -> Path:
    """Return our folder in the one that the variable names, or in the usual one below the home folder."""
    home = expanded("~")
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "clusterfn"
    folder = home / (of_mac if sys.platform == "darwin" else usual)
    return Path(os.environ.get(variable) or folder) / "clusterfn"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # This user may not be allowed to look into a folder above.
        return False


def is_ours(info: os.stat_result) -> bool:
    """Whether it belongs to this user or to root; Windows does not say, and keeps users apart by their folders."""
    return not hasattr(os, "geteuid") or info.st_uid in (ROOT_UID, os.geteuid())


def reject_others(path: Path, info: os.stat_result) -> None:
    """Reject another user's file that the variable does not name, with a ConfigError: it could run its `setup:`."""
    if not is_ours(info) and path != file_of_variable():
        hint = f"to use it anyway, set {VARIABLE}={shlex.quote(str(path))}"
        raise ConfigError(f"{path} belongs to another user, and its lines would run with your permissions", hint=hint)
