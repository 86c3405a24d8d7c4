"""The project of a script or a command: the folder that its job gets a copy of.

It is the working directory if the script is in or below it, else the script's folder.
"""

from __future__ import annotations

import os
import pathlib
import stat

from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.packing.files import Contents, Directory, Member
from clusterfn.packing.project import roots, rules
from clusterfn.packing.project.git import GitRefused
from clusterfn.packing.project.listing import Listing, imported_words, is_below
from clusterfn.packing.project.modules import is_own


class Project(Directory):
    """A folder whose own files travel, as they are when a call is packed.

    Attributes:
        always: A file that belongs to it, whatever git says; None if there is none.
    """

    always: pathlib.Path | None = None

    def contents(self) -> Contents:
        """Return what of it travels; raise ConfigError if it is too large, GitRefused if git does not say."""
        listing = self.listing()
        rules.tell_of(listing)
        files, elsewhere = {member.name: member for member in listing.files}, set[str]()
        for project in roots.installed():
            below = self._below(project.folder)
            folders = roots.declared(project.folder).roots if project.folder else ()
            if below is not None:
                for path in roots.metadata_files(project):
                    name = os.path.normpath(os.path.join(below, *folders[:1], project.metadata.name, path.name))
                    member = Member(name.replace(os.sep, "/"), str(path), path.stat())
                    files.setdefault(member.name, member)
            else:
                names = (name for root in folders for name in os.listdir(os.path.join(project.folder, root)))
                elsewhere.update(name.removesuffix(".py") for name in names)
        imports = elsewhere.intersection(*[set().union(*map(imported_words, listing.files))] if elsewhere else [])
        return Contents([*files.values()], listing.folders, listing.links, tuple(sorted(filter(is_own, imports))))

    def declared(self) -> roots.Declared:
        """Return the folders from which its modules are imported, and its console scripts."""
        folders, scripts = dict[str, None](), dict[str, str]()
        for folder in (str(self), *(project.folder for project in roots.installed())):
            if (below := self._below(folder)) is not None:
                declared = roots.declared(folder)
                folders.update((os.path.normpath(os.path.join(below, root)), None) for root in declared.roots)
                scripts.update(declared.scripts)
        return roots.Declared(tuple(folders), scripts)

    def _below(self, folder: str) -> str | None:
        """Return the name of a folder in this one, "" for itself; None if it is none."""
        root = os.path.realpath(self)
        return os.path.relpath(folder, root) if folder and is_below(folder, root) else None

    def listing(self) -> Listing:
        """List what of it travels, and what does not."""
        return Listing(str(self), always=str(self.always or ""))


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
