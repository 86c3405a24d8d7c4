"""Read the archive of a package, which may hold anything, and extract its files into a folder.

An archive is a `.tar.bz2`, a `.conda` (a zip of tars), a wheel (a zip) or a `.tar.gz`. Names that lead outside and
entries that are no files are rejected. zstd is read by Python's own module (3.14 and newer), by the `zstandard` that
the client sends, or by the program `zstd`.
"""

import bz2
import contextlib
import functools
import gzip
import importlib
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from typing import IO, Any, Callable, ContextManager, Iterator, Optional, Tuple, Union

from ..supervisor import publish
from ..supervisor.text import native
from .link import CACHE, PackageFile
from .plan import CONDA, TAR_BZ2, TAR_GZ
from .progress import BuildFailed

Opener = Callable[[IO[bytes]], ContextManager[IO[bytes]]]
Member = Tuple[PackageFile, Union[IO[bytes], str, None]]

# What a damaged archive raises: it cannot be read, or one path is a file and also a folder or link.
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    ValueError,
    KeyError,
    NotImplementedError,
    zlib.error,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)

_BLOCK = 1 << 20


def _read_members(path: str, kind: str, zstd: "Optional[Opener]") -> "Iterator[Member]":
    """Yield every file with its content; folders are left out, as they follow from the files.

    In place of its content a hard link has the path of the file that it is.

    Raises:
        BuildFailed: It holds what must not be unpacked.
        One of DAMAGED, OSError: It cannot be read.
    """
    if kind in (TAR_BZ2, TAR_GZ):
        opener: "Any" = bz2.open if kind == TAR_BZ2 else gzip.open
        with opener(path, "rb") as stream:
            yield from _tar(stream, "python/" if kind == TAR_GZ else "")
        return
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if kind == CONDA:
                assert zstd is not None
                if info.filename.endswith(".tar.zst"):
                    with archive.open(info) as packed, zstd(packed) as stream:
                        yield from _tar(stream)
                continue
            name = _inside("", info.filename)
            mode = info.external_attr >> 16
            if info.filename.endswith("/"):
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise BuildFailed("%s is no file" % name, stage="unpack")
            with archive.open(info) as content:
                executable = ".data/scripts/" in name or bool(mode & 0o111)
                yield PackageFile(name, info.file_size, executable), content


def _tar(stream: "IO[bytes]", top: str = "") -> "Iterator[Member]":
    """Yield the files of a tar, named without the folder in which all of them must be."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as archive:
        for info in archive:
            if info.isdir():
                continue
            path = _inside(top, info.name)
            member = PackageFile(path, info.size, bool(info.mode & 0o111))
            if info.isreg():
                yield member, archive.extractfile(info)
            elif info.issym():
                link = native(info.linkname)
                # A relative link must stay in the package. An absolute one is only recorded.
                if not link.startswith("/"):
                    _inside("", os.path.join(os.path.dirname(path), link))
                yield member._replace(size=0, link=link), None
            elif info.islnk():
                yield member, _inside(top, info.linkname)
            else:
                raise BuildFailed("%s is neither file nor link" % path, stage="unpack")


def _inside(top: str, name: str) -> str:
    """Return a normalized path below the folder `top` of an archive; refuse any other."""
    path = native(name)
    clean = os.path.normpath(path) if path else ""
    if not clean or clean.startswith(("/", "../")) or clean == ".." or "\0" in clean:
        raise BuildFailed("it holds the path %r, which leads out of its folder" % path, stage="unpack")
    if not clean.startswith(top):
        raise BuildFailed("%s is not in the folder %s" % (clean, top), stage="unpack")
    return clean[len(top) :]


def extract_archive(
    archive: str, kind: str, zstd: "Optional[Opener]", folder: str, moved: "Callable[[int], None]"
) -> "dict[str, PackageFile]":
    """Extract the files of an archive into a folder, but for byte code; return them by their paths.

    Symbolic links are made last, so nothing is written through one.
    """
    found: "dict[str, PackageFile]" = {}
    made = {folder}
    for member, content in _read_members(archive, kind, zstd):
        # The host compiles byte code itself: that of a package would be stale (`link`).
        if CACHE in member.path:
            continue
        path = os.path.join(folder, member.path)
        if os.path.dirname(path) not in made:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            made.add(os.path.dirname(path))
        if member.path in found and found[member.path].link is None:
            os.unlink(path)
        if isinstance(content, str):
            member = found[content]._replace(path=member.path)
            if member.link is None:
                shutil.copy(os.path.join(folder, content), path)
        elif content is not None:
            # With O_EXCL, nothing is written through a link that is there already.
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if member.executable else 0o666)
            with os.fdopen(fd, "wb", 0):
                for block in iter(functools.partial(content.read, _BLOCK), b""):
                    publish.write_all(fd, block)
                    moved(len(block))
        found[member.path] = member
    for member in found.values():
        if member.link is not None:
            os.symlink(member.link, os.path.join(folder, member.path))
    return found


def find_zstd(wheel: "Optional[str]" = None) -> "Optional[Opener]":
    """Return a function that turns a compressed stream into a readable one; None if this host has none.

    Args:
        wheel: The unpacked `zstandard` wheel, if the client sent one.
    """
    # Python has this module from 3.14 on.
    with contextlib.suppress(ImportError):
        standard: "Any" = importlib.import_module("compression.zstd")
        return lambda stream: standard.ZstdFile(stream)
    if wheel is not None:
        sys.path.append(wheel)
        # The wheel may be built for another interpreter.
        with contextlib.suppress(ImportError):
            zstandard: "Any" = importlib.import_module("zstandard")
            return lambda stream: io.BufferedReader(
                zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(stream, read_size=_BLOCK), _BLOCK
            )
    program = shutil.which("zstd") or shutil.which("unzstd")
    return functools.partial(_decompressed, [program, "-dcq", "--long=31"]) if program else None


@contextlib.contextmanager
def _decompressed(argv: "list[str]", source: "IO[bytes]") -> "Iterator[IO[bytes]]":
    """Start a program whose input a thread writes; yield its output."""

    def feed(pipe: "IO[bytes]") -> None:
        # If the program has ended, its stderr says why.
        with contextlib.suppress(OSError, ValueError), pipe:
            shutil.copyfileobj(source, pipe, _BLOCK)

    piped = subprocess.PIPE
    with subprocess.Popen(argv, stdin=piped, stdout=piped, stderr=piped) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        feeder = threading.Thread(target=feed, args=(process.stdin,), daemon=True)
        feeder.start()
        try:
            yield process.stdout
        finally:
            has_failed = not process.stdout.read(_BLOCK) and process.wait()
            process.kill()
            feeder.join()
            # The program's own error counts more than that of the tar which it has cut off.
            if has_failed:
                raise ValueError("zstd: %s" % process.stderr.read().decode("utf-8", "replace").strip())
