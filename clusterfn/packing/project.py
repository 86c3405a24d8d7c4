"""The project of a script or a command: the folder that its job gets a copy of, and which files belong to it.

It is the working directory if the script is in or below it, else the script's folder. Git decides what belongs to it
(.gitignore holds); outside of a repository it is everything but hidden folders, caches and environments.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
import subprocess
from collections.abc import Iterator, Sequence

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.packing.files import Directory, holds_credentials

_MOST_BYTES = 200 << 20
_MOST_FILES = 20_000
_KEEP_THERE = "list large files in .gitignore, and keep data on the host: pass its path to the script"
_LARGEST = 5
_LEFT_OUT = frozenset(["__pycache__", "node_modules", "venv", "env"])
_reported: set[pathlib.Path] = set()


class Project(Directory):
    """A folder whose own files travel, as they are when a call is packed.

    Attributes:
        always: A file that belongs to it, whatever git and its name say; None if there is none.
    """

    always: pathlib.Path | None = None

    def members(self) -> Iterator[tuple[str, pathlib.Path]]:
        """Yield each file with its relative name.

        Raises:
            ConfigError: They are too large.
        """
        root = pathlib.Path(self)
        files = set()
        for path in filter(pathlib.Path.is_file, _members(root)):
            files.add(path)
            # The check comes at once, because the folder may contain a whole disk.
            if len(files) > _MOST_FILES:
                raise ConfigError(f"the project {root} has more than {_MOST_FILES} files", hint=_KEEP_THERE)
        withheld = {path for path in files if path != self.always and _holds_credentials(path)}
        if new := sorted(withheld - _reported):
            _reported.update(new)
            shown = ", ".join(path.relative_to(root).as_posix() for path in new)
            console.warn(f"not sent, because they look like keys or passwords: {shown}")
        sent = sorted((files - withheld) | ({self.always} if self.always else set()))
        _refuse_large(root, sent)
        for path in sent:
            yield path.relative_to(root).as_posix(), path


def project_of(named: pathlib.Path, script: pathlib.Path | None = None) -> Project:
    """Return the project that a script, or another file which a command names, belongs to.

    Raises:
        ConfigError: It would be the home directory, or the root of the file system; or it is too large.
    """
    here = pathlib.Path.cwd().resolve()
    root = here if here in named.parents else named.parent
    if _is_too_high(root):
        hint = "put the script into a folder of its own, and run it from there"
        raise ConfigError(f"the project of {named.name} would be all of {root}", hint=hint)
    project = Project(root)
    project.always = script
    # The files are listed now, so that an error appears before anything is done.
    list(project.members())
    return project


def working_directory() -> Project | None:
    """Return the project of a command that names no file; None if the working directory is too much to send."""
    here = Project(pathlib.Path.cwd().resolve())
    try:
        if not _is_too_high(pathlib.Path(here)) and list(here.members()):
            return here
    except ConfigError:
        # The folder is too large to send.
        pass
    console.tell(f"nothing of {here} is sent, because the command names no file in it")
    return None


def commit_of(project: Project) -> dict[str, str | None]:
    """Return the variable with the commit of a project, whose copy has no .git; nothing outside of a repository."""
    describe = ["git", "-C", str(project), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    with contextlib.suppress(FileNotFoundError):
        found = subprocess.run(describe, capture_output=True, check=False, text=True)
        return {"CLUSTERFN_GIT_COMMIT": found.stdout.strip()} if found.returncode == 0 else {}
    return {}


def _is_too_high(root: pathlib.Path) -> bool:
    """Whether a folder is above all projects of a user, or one for everybody's files, such as /tmp."""
    home = pathlib.Path.home().resolve()
    return root in (home, *home.parents, pathlib.Path(root.anchor)) or bool(root.stat().st_mode & stat.S_ISVTX)


def _holds_credentials(path: pathlib.Path) -> bool:
    """Whether a file looks like a key or a password, by its own name or that of the file to which it links."""
    return holds_credentials(path) or (path.is_symlink() and holds_credentials(path.resolve()))


def _members(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the files of a project, and those of its submodules that are there.

    Where the repository around a folder ignores all of it, as one in the home directory does, git knows no files.
    """
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    # git may not be installed.
    with contextlib.suppress(FileNotFoundError):
        result = subprocess.run(listing, capture_output=True, check=False)
        if result.returncode == 0 and result.stdout:
            for name in dict.fromkeys(result.stdout.split(b"\0")):
                path = root / os.fsdecode(name)
                if name and path.is_dir() and not path.is_symlink():
                    # A submodule may not have been fetched.
                    if path != root and (path / ".git").exists():
                        yield from _members(path)
                elif name:
                    yield path
            return
    for above, folders, names in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _LEFT_OUT]
        folders[:] = [each for each in folders if not pathlib.Path(above, each, "pyvenv.cfg").exists()]
        yield from (pathlib.Path(above, name) for name in names)


def _refuse_large(root: pathlib.Path, members: Sequence[pathlib.Path]) -> None:
    sizes = {path.relative_to(root).as_posix(): path.stat().st_size for path in members}
    total = sum(sizes.values())
    if total > _MOST_BYTES:
        largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:_LARGEST]
        raise ConfigError(
            f"the project {root} is {format_size(total)}, more than {format_size(_MOST_BYTES)}",
            evidence=[f"{format_size(sizes[name])}  {name}" for name in largest],
            hint=_KEEP_THERE,
        )
