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
_kept: dict[str, tuple[dict[str, int], frozenset[str] | None]] = {}


class GitRefused(ConfigError):
    """A repository is there, and git does not say which files belong to it."""


def listed(folder: str) -> frozenset[str] | None:
    """Return the names below a folder that git lists, relative to it; None where git decides nothing.

    That is so without a repository and a .gitignore, and where the repository around the folder ignores all of it, as
    one in the home directory does.

    Raises:
        GitRefused: There is a repository, but git does not read it, or there is no git.
    """
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
    return frozenset(names.split("\0")) - {""} if names else None


def kept(folder: str) -> frozenset[str] | None:
    """Return the answer that `keep` has kept; raise KeyError if there is none, or something has changed since."""
    times, names = _kept[folder]
    if any(_time(path) != time for path, time in times.items()):
        raise KeyError(folder)
    return names


def keep(folder: str, names: frozenset[str] | None, folders: Iterable[str]) -> None:
    """Keep an answer until an entry of these folders, or what git knows, changes."""
    folders = [*map(str, Path(folder).parents), *folders]
    found = os.path.join(above(folder, ".git") or folder, ".git")
    if os.path.isfile(found):
        # A worktree and a submodule have their repository elsewhere.
        found = os.path.join(os.path.dirname(found), Path(found).read_text("utf-8").partition(": ")[2].strip())
    paths = [os.path.join(found, "index"), os.path.join(found, "info/exclude")]
    paths += [*folders, *(os.path.join(each, _IGNORE) for each in folders)]
    _kept[folder] = {path: _time(path) for path in paths}, names


def commit_of(folder: str) -> dict[str, str | None]:
    """Return the variable with the commit of a folder, whose copy has no .git; nothing outside of a repository."""
    describe = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    with contextlib.suppress(FileNotFoundError):
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
    home, device = os.path.realpath(os.path.expanduser("~")), os.stat(folder).st_dev
    for path in (folder, *map(str, Path(folder).parents)):
        is_too_high = name == _IGNORE and os.path.join(home, "").startswith(os.path.join(path, ""))
        # git does not look on another file system either.
        if is_too_high or os.stat(path).st_dev != device:
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
