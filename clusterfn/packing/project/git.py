"""Ask git which files of a folder it tracks or would add: `.gitignore` holds, in a repository and without one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clusterfn.display import console
from clusterfn.errors import ConfigError

_LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
_IGNORE = ".gitignore"
# A hook of git sets these for the repository that calls it.
_OF_A_REPOSITORY = "GIT_"
_OF_THE_USER = "GIT_CONFIG"
_warned: set[str] = set()
# For packages of functions: what git has listed, and the times of all that its answer depends on.
_kept: dict[str, tuple[Mapping[str, int], frozenset[str] | None]] = {}


class GitRefused(ConfigError):
    """A repository is there, and git does not say which files belong to it."""


def listed(folder: str) -> frozenset[str] | None:
    """Return the names below a folder that git lists, relative to it; None where git decides nothing.

    That is so without a repository and a .gitignore, and where the repository around the folder ignores all of it, as
    one in the home directory does.

    Raises:
        GitRefused: There is a repository, but git does not read it, or there is no git.
    """
    if repository := above(folder, ".git"):
        names = _ask(folder, repository, ())
    elif ignoring := above(folder, _IGNORE):
        # Few projects need it, and the import takes time.
        import tempfile

        with tempfile.TemporaryDirectory(prefix="clusterfn-git-") as empty:
            # This is the smallest folder that git accepts as a repository.
            for name in ("objects", "refs"):
                os.mkdir(os.path.join(empty, name))
            Path(empty, "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
            names = _ask(folder, "", (f"--git-dir={empty}", f"--work-tree={ignoring}"))
    else:
        names = ""
    return frozenset(names.split("\0")) - {""} if names else None


def kept(folder: str) -> frozenset[str] | None:
    """Return the answer to the same question that `keep` has kept.

    Raises:
        KeyError: There is none, or something has changed since.
    """
    times, names = _kept[folder]
    if _times(times) != times:
        raise KeyError(folder)
    return names


def keep(folder: str, names: frozenset[str] | None, folders: Iterable[str]) -> None:
    """Keep an answer until an entry of these folders, or what git knows, changes."""
    folders = [*map(str, Path(folder).parents), *folders]
    found = os.path.join(above(folder, ".git") or folder, ".git")
    if os.path.isfile(found):
        # A worktree and a submodule have their repository elsewhere.
        found = os.path.join(os.path.dirname(found), Path(found).read_text("utf-8").partition(": ")[2].strip())
    state = [os.path.join(found, name) for name in ("index", "info/exclude")]
    _kept[folder] = _times([*folders, *(os.path.join(each, _IGNORE) for each in folders), *state]), names


def _times(paths: Iterable[str]) -> dict[str, int]:
    times = {}
    for path in paths:
        try:
            times[path] = os.stat(path).st_mtime_ns
        except OSError:
            times[path] = 0
    return times


def above(folder: str, name: str) -> str | None:
    """Return the nearest folder upwards that has an entry of this name, below the home directory for a .gitignore."""
    home, device = os.path.realpath(os.path.expanduser("~")), os.stat(folder).st_dev
    for each in (Path(folder), *Path(folder).parents):
        path = str(each)
        if name == _IGNORE and (home == path or home.startswith(os.path.join(path, ""))):
            return None
        # git looks no further either.
        if os.stat(path).st_dev != device:
            return None
        if os.path.lexists(os.path.join(path, name)):
            return path
    return None


def _ask(folder: str, repository: str, options: Sequence[str]) -> str:
    env = {
        name: value for name, value in os.environ.items()
        if not name.startswith(_OF_A_REPOSITORY) or name.startswith(_OF_THE_USER)
    }  # fmt: skip
    try:
        result = subprocess.run(
            ["git", *options, "-C", folder, *_LIST], capture_output=True, check=False, env={**env, "LC_ALL": "C"}
        )
    except OSError as error:
        if repository:
            raise _refused(repository, f"git cannot be started: {error.strerror}", "install git") from error
        _warn(f"{folder} has a {_IGNORE}, which has no effect: install git")
        return ""
    text = os.fsdecode(result.stderr).strip()
    if result.returncode and repository:
        raise _refused(repository, text, "do what git says, or remove the folder .git, so that git decides nothing")
    return "" if result.returncode else os.fsdecode(result.stdout)


def _warn(sentence: str) -> None:
    if sentence not in _warned:
        _warned.add(sentence)
        console.warn(sentence)


def _refused(repository: str, text: str, hint: str) -> GitRefused:
    with contextlib.suppress(StopIteration):
        # git names the command that makes it trust the folder.
        hint = next(line.strip() for line in text.splitlines() if line.strip().startswith("git config"))
    message = f"{repository} is a git repository, and git does not say which of its files belong to it"
    return GitRefused(message, evidence=text.splitlines()[:3], hint=hint)
