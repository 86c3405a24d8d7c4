"""Unpack one archive into a folder `pkgs/<sha256>`, which holds its files and their manifest.

A temporary folder is renamed, so a package is whole or absent. Symbolic links are made last, so nothing is written
through one.
"""

import os
import shutil
import zlib

from ..layout import MANIFEST, PACKAGE_FILES, package_dir
from . import bytecode, conda_package, layouts, wheel
from .archives import DAMAGED, Member, read_members
from .errors import BuildFailed
from .plan import WHEEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Callable, Optional

    from .archives import Opener
    from .plan import PlannedPackage

    Moved = Callable[[int], None]

_BLOCK = 1 << 20
# One path is a file and also a folder or link; or the compressed stream is invalid.
_CONFUSED = (FileExistsError, NotADirectoryError, IsADirectoryError, zlib.error)


def unpack_package(
    root: str, package: "PlannedPackage", archive: str, zstd: "Optional[Opener]", token: str, moved: "Moved"
) -> None:
    """Unpack one checked archive, unless another builder has done that meanwhile.

    Args:
        root: The root of environments.
        package: The package that it holds.
        archive: Its file.
        zstd: Opens a zstd stream.
        token: The builder's, for the name of the temporary folder.
        moved: Called with the bytes of each block; may raise to stop.
    """
    final = package_dir(root, package.sha256)
    aside = os.path.join(os.path.dirname(final), ".%s-%s" % (package.sha256, token))
    shutil.rmtree(aside, ignore_errors=True)
    os.makedirs(os.path.join(aside, PACKAGE_FILES))
    try:
        _fill(package, archive, zstd, aside, moved)
        _rename(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _fill(package: "PlannedPackage", archive: str, zstd: "Optional[Opener]", aside: str, moved: "Moved") -> None:
    folder = os.path.join(aside, PACKAGE_FILES)
    try:
        found = extract_archive(archive, package.kind, zstd, folder, moved)
        for path in bytecode.remove_dates(folder, found):
            os.unlink(os.path.join(folder, path))
            del found[path]
        described = (wheel if package.kind == WHEEL else conda_package).describe(package, folder, found)
    except BuildFailed as error:
        error.args = ("%s cannot be unpacked: %s" % (package.label, error),)
        raise
    except DAMAGED + _CONFUSED as error:
        message = "%s cannot be unpacked: %s: %s" % (package.label, type(error).__name__, error)
        raise BuildFailed(message, stage="unpack", evidence=[package.file]) from error
    layouts.write_manifest(described, os.path.join(aside, MANIFEST))


def _rename(aside: str, final: str) -> None:
    try:
        os.rename(aside, final)
    except OSError:
        if layouts.read_manifest(os.path.join(final, MANIFEST)) is not None:
            return
        os.rename(final, aside + ".old")  # what a purging file system left of it
        os.rename(aside, final)
        shutil.rmtree(aside + ".old", ignore_errors=True)


def extract_archive(
    archive: str, kind: str, zstd: "Optional[Opener]", folder: str, moved: "Moved"
) -> "dict[str, Member]":
    """Extract every file of an archive into a folder; return them by their paths."""
    found: "dict[str, Member]" = {}
    made = {folder}
    for member, stream in read_members(archive, kind, zstd):
        path = os.path.join(folder, member.path)
        if os.path.dirname(path) not in made:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            made.add(os.path.dirname(path))
        if member.path in found and found[member.path].link is None:
            os.unlink(path)
        if member.same is not None:
            source, member = member.same, found[member.same]._replace(path=member.path)
            if member.link is None:
                shutil.copy(os.path.join(folder, source), path)
        elif stream is not None:
            _write(path, stream, member.executable, moved)
        found[member.path] = member
    _make_links(found, folder)
    return found


def _make_links(found: "dict[str, Member]", folder: str) -> None:
    for member in found.values():
        if member.link is not None:
            os.symlink(member.link, os.path.join(folder, member.path))


def _write(path: str, stream: "IO[bytes]", executable: bool, moved: "Moved") -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if executable else 0o666)
    with os.fdopen(fd, "wb", 0) as file:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            view = memoryview(block)
            while view:
                view = view[file.write(view) :]
            moved(len(block))
