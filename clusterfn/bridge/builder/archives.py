"""Read and extract an archive: `.tar.bz2`, `.conda` (a zip of tars), wheels (a zip), `.tar.gz`, our own `.tar`.

An archive may hold anything: names that lead outside and entries that are no files are rejected. zstd is read by
Python's own module (3.14 and newer), by `zstandard`, or by the program `zstd`.
"""

import bz2
import functools
import gzip
import importlib
import importlib.machinery
import io
import os
import shutil
import site
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from typing import NamedTuple

from ..supervisor.text import native, size
from .errors import BuildFailed
from .plan import CONDA, TAR_BZ2, TAR_GZ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Iterator, Optional

    Opener = Callable[[IO[bytes]], IO[bytes]]

# What a damaged archive raises: it cannot be read, or one path is a file and also a folder or link.
DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, KeyError, NotImplementedError, zlib.error,
    FileExistsError, NotADirectoryError, IsADirectoryError,
)  # fmt: skip

TAR = ".tar"  # our own archives of environments
_MOST_TIMES, _ALWAYS = 250, 64 << 20  # bzip2 can make a gigabyte of a kilobyte; no package comes near this
_BLOCK = 1 << 20


class Member(NamedTuple):
    """One file of an archive.

    Attributes:
        link: Target of a symbolic link.
        same: The path of another member, of which this is a hard link.
    """

    path: str
    size: int
    executable: bool
    mtime: int
    link: "Optional[str]" = None
    same: "Optional[str]" = None


class _Budget:
    """How many bytes may still come out of an archive."""

    def __init__(self, archive: str) -> None:
        self._size = os.stat(archive).st_size
        self._left = _ALWAYS + _MOST_TIMES * self._size

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise BuildFailed(
                "it is %s large and holds more than %s" % (size(self._size), size(self._size * _MOST_TIMES + _ALWAYS)),
                stage="unpack", hint="no package is packed so tightly: look at where it comes from",
            )  # fmt: skip


class _Bounded:
    """A stream that yields no more than the budget allows."""

    def __init__(self, stream: "IO[bytes]", budget: _Budget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, count: int = -1) -> bytes:
        data = self._stream.read(count)
        self._budget.take(len(data))
        return data


def read_members(path: str, kind: str, zstd: "Optional[Opener]") -> "Iterator[tuple[Member, Optional[IO[bytes]]]]":
    """Yield every file with its content; folders are left out, as they follow from the files.

    Raises:
        BuildFailed: It holds what must not be unpacked.
        One of DAMAGED, OSError: It cannot be read.
    """
    budget = _Budget(path)
    if kind == TAR_BZ2:
        with bz2.BZ2File(path) as stream:
            yield from _tar(stream, budget)
    elif kind == TAR_GZ:
        with gzip.open(path) as zipped:
            content: "Any" = zipped
            yield from _without_top(_tar(content, budget), "python/")
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
            path = refuse_unsafe_path(native(info.name))
            if info.isdir():
                continue
            member = Member(path, info.size, bool(info.mode & 0o111), int(info.mtime))
            if info.isreg():
                sizes[path] = info.size
                yield member, archive.extractfile(info)
            elif info.issym():
                link = native(info.linkname)
                if not link.startswith("/"):  # a relative one must stay in the package; others are not resolved
                    refuse_unsafe_path(os.path.join(os.path.dirname(path), link))
                yield member._replace(size=0, link=link), None
            elif info.islnk():
                same = refuse_unsafe_path(native(info.linkname))
                budget.take(sizes.get(same, 0))  # it is copied
                yield member._replace(same=same), None
            else:
                raise BuildFailed("%s is neither file nor link" % path, stage="unpack")


def _without_top(
    members: "Iterator[tuple[Member, Optional[IO[bytes]]]]", top: str
) -> "Iterator[tuple[Member, Optional[IO[bytes]]]]":
    """Yield the members without the folder in which all of them must be."""
    for member, stream in members:
        same = member.same
        if not member.path.startswith(top) or (same is not None and not same.startswith(top)):
            raise BuildFailed("%s is not in the folder %s" % (member.path, top), stage="unpack")
        bare = None if same is None else same[len(top) :]
        yield member._replace(path=refuse_unsafe_path(member.path[len(top) :]), same=bare), stream


def _zip(archive: zipfile.ZipFile, budget: _Budget) -> "Iterator[tuple[Member, Optional[IO[bytes]]]]":
    for info in archive.infolist():
        path = refuse_unsafe_path(native(info.filename))
        if info.filename.endswith("/"):
            continue
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise BuildFailed("%s is no file" % path, stage="unpack")
        script = ".data/scripts/" in path
        with archive.open(info) as content:
            bounded: "Any" = _Bounded(content, budget)
            yield Member(path, info.file_size, script or bool(mode & 0o111), 0), bounded


def unpacked_zip_size(path: str) -> "tuple[int, int]":
    """Return how many bytes and files an unpacked wheel has."""
    with zipfile.ZipFile(path) as archive:
        sizes = [info.file_size for info in archive.infolist()]
    return sum(sizes), len(sizes)


def refuse_unsafe_path(path: str) -> str:
    """Return a normalized path below the folder of the archive; refuse any other."""
    clean = os.path.normpath(path) if path else ""
    if not clean or clean.startswith(("/", "../")) or clean == ".." or "\0" in clean:
        raise BuildFailed("it holds the path %r, which leads out of its folder" % path, stage="unpack")
    return clean


def extract_archive(
    archive: str, kind: str, zstd: "Optional[Opener]", folder: str, moved: "Callable[[int], None]"
) -> "dict[str, Member]":
    """Extract every file of an archive into a folder; return them by their paths.

    Symbolic links are made last, so nothing is written through one.
    """
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
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if member.executable else 0o666)
            with os.fdopen(fd, "wb", 0) as file:
                for block in iter(functools.partial(stream.read, _BLOCK), b""):
                    view = memoryview(block)
                    while view:
                        view = view[file.write(view) :]
                    moved(len(block))
        found[member.path] = member
    for member in found.values():
        if member.link is not None:
            os.symlink(member.link, os.path.join(folder, member.path))
    return found


def open_zstd(wheel: "Optional[str]" = None) -> "Opener":
    """Return a function that turns a compressed stream into a readable one.

    Args:
        wheel: The unpacked `zstandard` wheel, if the client sent one.
    """
    try:
        standard: "Any" = importlib.import_module("compression.zstd")
        return lambda stream: standard.ZstdFile(stream)
    except ImportError:  # before Python 3.14
        packages = list(site.getsitepackages()) if hasattr(site, "getsitepackages") else []
    module = _zstandard(packages) or (_zstandard([wheel]) if wheel else None)
    if module is not None:
        return module
    program = shutil.which("zstd") or shutil.which("unzstd")
    if program:
        return lambda stream: io.BufferedReader(_Piped([program, "-dcq", "--long=31"], stream), _BLOCK)
    raise BuildFailed(
        "this host cannot read zstd: no module compression.zstd or zstandard, no program zstd", stage="unpack",
        hint="the lock's zstandard wheel for Python %d.%d must come with the plan" % sys.version_info[:2],
    )  # fmt: skip


def can_read_zstd() -> bool:
    """Return whether the host can read zstd by itself."""
    try:
        return bool(open_zstd())
    except BuildFailed:
        return False


def _zstandard(folders: "list[str]") -> "Optional[Opener]":
    """Import zstandard from one of these folders, which are not in sys.path: the builder runs isolated."""
    if importlib.machinery.PathFinder.find_spec("zstandard", folders) is None:
        return None
    before = list(sys.path)
    sys.path[:0] = folders
    try:
        module: "Any" = importlib.import_module("zstandard")
    except ImportError:  # built for another interpreter
        return None
    finally:
        sys.path[:] = before
    return lambda stream: io.BufferedReader(
        module.ZstdDecompressor(max_window_size=1 << 31).stream_reader(stream, read_size=_BLOCK), _BLOCK
    )


class _Piped(io.RawIOBase):
    """The output of a program whose input is written by a thread."""

    def __init__(self, argv: "list[str]", source: "IO[bytes]") -> None:
        super().__init__()
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._feeder = threading.Thread(target=self._feed, args=(source,), daemon=True)
        self._feeder.start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Any") -> int:
        assert self._process.stdout is not None
        count = self._process.stdout.readinto(buffer)  # type: ignore[attr-defined]
        if not count and self._process.wait():
            assert self._process.stderr is not None
            raise ValueError("zstd: %s" % self._process.stderr.read().decode("utf-8", "replace").strip())
        return int(count)

    def close(self) -> None:
        if not self.closed:
            self._process.kill()
            self._feeder.join()
            self._process.wait()
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        super().close()

    def _feed(self, source: "IO[bytes]") -> None:
        assert self._process.stdin is not None
        try:
            shutil.copyfileobj(source, self._process.stdin, _BLOCK)
            self._process.stdin.close()
        except (OSError, ValueError):  # the program has ended; its stderr says why
            return
