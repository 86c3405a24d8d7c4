"""The project of a script or a command: the folder that its job gets a copy of.

It is the working directory if the script is in or below it, else the script's folder.
"""

from __future__ import annotations

import pathlib
import stat

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.packing.files import Contents, Directory
from clusterfn.packing.project import rules
from clusterfn.packing.project.git import GitRefused
from clusterfn.packing.project.listing import Exclusion, Listing, TooMuch

_MOST_BYTES = 200 << 20
_MOST_FILES = 20_000
_KEEP_THERE = "list large files in .gitignore, and keep data on the host: pass its path to the script"


class Project(Directory):
    """A folder whose own files travel, as they are when a call is packed.

    Attributes:
        always: A file that belongs to it, whatever git says; None if there is none.
    """

    always: pathlib.Path | None = None

    def contents(self) -> Contents:
        """Return what of it travels, and name what a user may miss.

        Raises:
            ConfigError: It is too large.
            GitRefused: Git does not say what belongs to it.
        """
        listing = self.listing()
        rules.tell_of(listing)
        return Contents(listing.files, listing.folders, listing.links)

    def listing(self) -> Listing:
        """List what of it travels, and what does not."""
        try:
            return Listing(str(self), always=str(self.always or ""), most=(_MOST_BYTES, _MOST_FILES))
        except TooMuch as too_much:
            how = f"files larger than {format_size(_MOST_BYTES)}"
            if len(too_much.members) > _MOST_FILES:
                how = f"more than {_MOST_FILES} files"
            evidence = rules.largest(too_much.members)
            raise ConfigError(f"the project {self} has {how}", evidence=evidence, hint=_KEEP_THERE) from None

    def why_not(self, name: str) -> Exclusion | None:
        """Return why something in its folder does not travel; None if it does."""
        above = [name, *map(str, pathlib.PurePosixPath(name).parents)]
        return next((each for each in self.listing().left_out if each.name in above), None)


def project_of(named: pathlib.Path, script: pathlib.Path | None = None) -> Project:
    """Return the project that a script, or another file which a command names, belongs to.

    Raises:
        ConfigError: It would be the home directory, or the root of the file system.
    """
    here = pathlib.Path.cwd().resolve()
    root = here if here in named.parents else named.parent
    if _is_too_high(root):
        hint = "put the script into a folder of its own, and run it from there"
        raise ConfigError(f"the project of {named.name} would be all of {root}", hint=hint)
    project = Project(root)
    project.always = script
    return project


def working_directory() -> Project | None:
    """Return the project of a command that names no file; None if the working directory is too much to send."""
    here = Project(pathlib.Path.cwd().resolve())
    try:
        if not _is_too_high(pathlib.Path(here)) and here.listing().files:
            return here
    except GitRefused:
        raise
    except ConfigError:
        # The folder is too large to send.
        pass
    console.tell(f"nothing of {here} is sent, because the command names no file in it")
    return None


def _is_too_high(root: pathlib.Path) -> bool:
    """Whether a folder is above all projects of a user, or one for everybody's files, such as /tmp."""
    home = pathlib.Path.home().resolve()
    return root in (home, *home.parents, pathlib.Path(root.anchor)) or bool(root.stat().st_mode & stat.S_ISVTX)
