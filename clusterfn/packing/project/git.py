"""Ask git which files of a folder it tracks or would add: `.gitignore` holds, in a repository and without one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from clusterfn.display import console
from clusterfn.errors import ConfigError

_LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
_IGNORE = ".gitignore"
_warned: set[str] = set()
# What git has listed below a package, and the times of all that its answer depends on.
_kept: dict[str, tuple[frozenset[str], dict[str, int]]] = {}


class GitRefused(ConfigError):
    """A repository is there, and git does not say which files belong to it."""


def listed(folder: str) -> frozenset[str] | None:
    """Return what git lists below a folder, files and folders, by relative names; None where git decides nothing.

    That is so without a repository and a .gitignore, and where the repository around the folder ignores all of it, as
    one in the home directory does.

    Raises:
        GitRefused: There is a repository, but git does not read it, or there is no git.
    """
    kept = _kept.get(folder)
    if kept and all(_time(path) == time for path, time in kept[1].items()):
        return kept[0]
    repository, ignoring = above(folder, ".git"), above(folder, _IGNORE)
    names = ""
    if repository:
        names = _ask(folder, repository)
    elif ignoring:
        # Few projects need it, and the import takes time.
        import tempfile

        with tempfile.TemporaryDirectory(prefix="clusterfn-git-") as empty:
            # This is the least that git takes for a repository.
            for name in ("objects", "refs"):
                Path(empty, name).mkdir()
            Path(empty, "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
            names = _ask(folder, "", f"--git-dir={empty}", f"--work-tree={ignoring}")
    # git lists a repository of its own as `name/`.
    found = {name.rstrip("/") for name in names.split("\0")} - {""}
    for name in tuple(found):
        while (name := name.rpartition("/")[0]) and name not in found:
            found.add(name)
    return frozenset(found) or None


def keep(folder: str, names: frozenset[str] | None, seen: Iterable[str]) -> None:
    """Keep an answer until an entry of the folders that were seen, or what git knows, changes."""
    if names is None or _kept.get(folder, (None,))[0] is names:
        return
    found = os.path.join(above(folder, ".git") or folder, ".git")
    folders = [*map(str, Path(folder).parents), *seen]
    paths = [os.path.join(found, "index"), os.path.join(found, "info/exclude"), *folders]
    _kept[folder] = names, {path: _time(path) for path in (*paths, *(os.path.join(path, _IGNORE) for path in folders))}


def commit_of(folder: str) -> dict[str, str | None]:
    """Return the variable with the commit of a folder, whose copy has no .git; nothing outside of a repository."""
    describe = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    with contextlib.suppress(OSError):
        found = subprocess.run(describe, capture_output=True, check=False, text=True)
        return {"CLUSTERFN_GIT_COMMIT": found.stdout.strip()} if found.returncode == 0 else {}
    return {}


def _time(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def above(folder: str, name: str) -> str | None:
    """Return the nearest folder upwards with an entry of this name; a .gitignore counts below the home directory."""
    home = os.path.join(os.path.realpath(os.path.expanduser("~")), "")
    for path in (folder, *map(str, Path(folder).parents)):
        if name == _IGNORE and home.startswith(os.path.join(path, "")):
            return None
        if os.path.lexists(os.path.join(path, name)):
            return path
    return None


def _ask(folder: str, repository: str, *options: str) -> str:
    # A hook of git sets variables for the repository that calls it.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or "_CONFIG" in name}
    try:
        argv = ["git", *options, "-C", folder, *_LIST]
        result = subprocess.run(argv, capture_output=True, check=False, env={**own, "LC_ALL": "C"})
        status, said, hint = result.returncode, os.fsdecode(result.stderr).splitlines(), "do what git says"
    except OSError as error:
        status, said, hint = 127, [f"git cannot be started: {error.strerror}"], "install git"
        if not repository and folder not in _warned:
            _warned.add(folder)
            console.warn(f"{folder} has a {_IGNORE}, which has no effect: install git")
    if status and repository:
        # Of a folder of another user, git names the command that makes it trust the folder.
        hint = next((line.strip() for line in said if line.strip().startswith("git config")), hint)
        message = f"{repository} is a git repository, and git does not say which of its files belong to it"
        raise GitRefused(message, evidence=said[:3], hint=hint)
    return "" if status else os.fsdecode(result.stdout)
