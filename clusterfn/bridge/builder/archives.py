"""The files of an archive, one after another: `.tar.bz2`, `.conda` (a zip of tars), wheels (a zip), our own `.tar`.

Reads; writes nothing. An archive may hold anything: names that lead elsewhere and things that are no files are
refused.
"""

import bz2
import os
import stat
import tarfile
import zipfile
from typing import NamedTuple

from ..supervisor.text import native, size
from .failure import Failed
from .plan import CONDA, TAR_BZ2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Iterator, Optional

    from .zstd import Opener

# What reading a damaged archive raises.
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, KeyError, NotImplementedError)

TAR = ".tar"  # of our own
_MOST_TIMES, _ALWAYS = 250, 64 << 20  # bzip2 makes a gigabyte of a kilobyte; no package comes near this


class Member(NamedTuple):
    """One file of an archive.

    Attributes:
        link: Target of a symbolic link.
        same: Another member's path, of which this is a second name.
    """

    path: str
    size: int
    executable: bool
    mtime: int
    link: "Optional[str]" = None
    same: "Optional[str]" = None


class _Budget:
    """The bytes that may still come out of an archive."""

    def __init__(self, archive: str) -> None:
        self._size = os.stat(archive).st_size
        self._left = _ALWAYS + _MOST_TIMES * self._size

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise Failed(
                "it is %s large and holds more than %s" % (size(self._size), size(self._size * _MOST_TIMES + _ALWAYS)),
                stage="unpack", hint="no package is packed so tightly: look at where it comes from",
            )  # fmt: skip


class _Bounded:
    """A stream that gives no more than the budget allows."""

    def __init__(self, stream: "IO[bytes]", budget: _Budget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, count: int = -1) -> bytes:
        data = self._stream.read(count)
        self._budget.take(len(data))
        return data


def members(path: str, kind: str, zstd: "Optional[Opener]") -> "Iterator[tuple[Member, Optional[IO[bytes]]]]":
    """Every file with its content; folders are left out, they follow from the files.

    Raises:
        Failed: It holds what must not be unpacked.
        One of DAMAGED, OSError: It cannot be read.
    """
    budget = _Budget(path)
    if kind == TAR_BZ2:
        with bz2.BZ2File(path) as stream:
            yield from _tar(stream, budget)
    elif kind == TAR:
        with open(path, "rb") as stream:
            yield from _tar(stream, budget)
    elif kind == CONDA:
        assert zstd is not None
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".tar.zst"):
                    with archive.open(name) as packed, zstd(packed) as stream:
                        yield from _tar(stream, budget)
    else:
        with zipfile.ZipFile(path) as archive:
            yield from _zip(archive, budget)


def _tar(stream: "IO[bytes]", budget: _Budget) -> "Iterator[tuple[Member, Optional[IO[bytes]]]]":
    sizes: "dict[str, int]" = {}
    bounded: "Any" = _Bounded(stream, budget)
    with tarfile.open(fileobj=bounded, mode="r|", bufsize=1 << 20) as archive:
        for info in archive:
            path = safe(native(info.name))
            if info.isdir():
                continue
            member = Member(path, info.size, bool(info.mode & 0o111), int(info.mtime))
            if info.isreg():
                sizes[path] = info.size
                yield member, archive.extractfile(info)
            elif info.issym():
                yield member._replace(size=0, link=_inside(path, native(info.linkname))), None
            elif info.islnk():
                same = safe(native(info.linkname))
                budget.take(sizes.get(same, 0))  # it is copied
                yield member._replace(same=same), None
            else:
                raise Failed("%s is neither file nor link" % path, stage="unpack")


def _zip(archive: zipfile.ZipFile, budget: _Budget) -> "Iterator[tuple[Member, Optional[IO[bytes]]]]":
    for info in archive.infolist():
        path = safe(native(info.filename))
        if info.filename.endswith("/"):
            continue
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise Failed("%s is no file" % path, stage="unpack")
        script = ".data/scripts/" in path
        with archive.open(info) as content:
            bounded: "Any" = _Bounded(content, budget)
            yield Member(path, info.file_size, script or bool(mode & 0o111), 0), bounded


def zip_size(path: str) -> "tuple[int, int]":
    """Bytes and files of an unpacked wheel."""
    with zipfile.ZipFile(path) as archive:
        sizes = [info.file_size for info in archive.infolist()]
    return sum(sizes), len(sizes)


def safe(path: str) -> str:
    """A path that stays below the folder it is unpacked to; anything else is refused."""
    clean = os.path.normpath(path) if path else ""
    if not clean or clean.startswith(("/", "../")) or clean == ".." or "\0" in clean:
        raise Failed("it holds the path %r, which leads out of its folder" % path, stage="unpack")
    return clean


def _inside(path: str, target: str) -> str:
    """The target of a symbolic link: an absolute one leads where it says, a relative one stays in the package."""
    if not target.startswith("/"):
        safe(os.path.join(os.path.dirname(path), target))
    return target
