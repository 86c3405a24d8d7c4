"""Files and folders as arguments: named by their content, paths there as here.

    train(clusterfn.File("data/x.csv"), clusterfn.Directory("models"))

Here they are `pathlib.Path`s to the original, so `f.local(File("x"))` works; inside a job they are paths to the same
content. Says what would travel (`FileUpload`), sends nothing. Large buffers get their names by their content, too.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import os
import pathlib
import re
import stat
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from clusterfn.errors import PayloadError

_CHUNK = 1 << 20
# This suffix follows the digest of the content of a program.
_PROGRAM = "\0x"
_digests: dict[tuple[str, int, int, int, int], tuple[str, int]] = {}
_CREDENTIALS = re.compile(
    r"\.env(?:\.(?!example|sample|template|dist).+)?|[._]netrc|\.(?:pypirc|npmrc|pgpass|git-credentials|htpasswd)"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|.+\.(?:p12|pfx|jks|keystore|kdbx|ppk)"
    r"|(?:credentials|client_secret.*|service[-_]account.*)(?:\.json|\.ini|\.csv)?|secrets?\.(?:json|ya?ml|toml|ini)",
    re.IGNORECASE,
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
# The first line of a private key is looked for in this many bytes.
_HEAD = 4096


class File(type(pathlib.Path())):  # type: ignore[misc]
    """A file of this machine that the function reads.

    Its content is sent once to each host, whatever its name, and never altered there. Inside a job it is a read-only
    file of the same name.

    Args:
        path: The local path.

    Raises:
        PayloadError: At the call, if it does not exist or is a folder.

    Example:
        >>> train(File("data/x.csv"))
    """


class Directory(type(pathlib.Path())):  # type: ignore[misc]
    """A folder of this machine that the function reads, with every file below it. See `File`.

    Links are followed. Sockets and devices are left out.
    """

    def contents(self) -> Contents:
        """Return what is below it."""
        root, files, folders = os.path.abspath(self), list[Member](), list[str]()
        _walk(root, "", (os.path.realpath(root),), files, folders)
        return Contents(files, folders)


class Member(NamedTuple):
    """A file that is sent: its relative name, with slashes; its path here; and what the file system says of it."""

    name: str
    path: str
    facts: os.stat_result


class Contents(NamedTuple):
    """What of a folder is sent.

    Attributes:
        folders: The names of those without a file below them.
        links: (name, target) of those that stay links. An absolute target is one of the host.
        imports: Modules of the user's that are elsewhere, and that its code imports.
    """

    files: Sequence[Member]
    folders: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    imports: Sequence[str] = ()


class FileUpload(NamedTuple):
    """One File or Directory as the host will have it, at `files/<digest>/<name>`.

    Attributes:
        digest: SHA-256 of the content; for a folder, of its names and contents.
        name: The last part of the path.
        contents: What is in it; a File is the one member "".
        size: Bytes in all.
        is_directory: Whether it is a Directory.
        crcs: CRC-32 of each member.
    """

    digest: str
    name: str
    contents: Contents
    size: int
    is_directory: bool
    crcs: tuple[int, ...]


def holds_credentials(path: str) -> bool:
    """Whether a file looks like a key or a password: by its name, or by its first lines; code never does."""
    if path.endswith(".py"):
        return False
    if path.lower().endswith((".pem", ".key")):
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - a Path for each file of a project takes long
                return _PRIVATE_KEY.search(file.read(_HEAD)) is not None
        except OSError:
            # The error appears when the file is read whole.
            return False
    return _CREDENTIALS.fullmatch(os.path.basename(path)) is not None


def shipment(path: File | Directory) -> FileUpload:
    """Describe a File's or Directory's content; raise PayloadError if it is absent, the other kind, or unreadable."""
    try:
        return _directory(path) if isinstance(path, Directory) else _file(path)
    except (OSError, ValueError) as error:
        # A path with a NUL raises ValueError.
        message = f"{type(path).__name__}({str(path)!r}) cannot be read: {error}"
        raise PayloadError(message, hint=f"the path is relative to {pathlib.Path.cwd()}") from error


def _file(path: File) -> FileUpload:
    plain = os.path.abspath(path)
    if os.path.isdir(plain):
        raise PayloadError(f"File({str(path)!r}) is a folder", hint=f"write Directory({str(path)!r})")
    member = Member("", plain, os.stat(plain))
    if not stat.S_ISREG(member.facts.st_mode):
        raise PayloadError(f"File({str(path)!r}) is a device, a pipe or a socket", hint="copy it into a file first")
    digest, crc = _digest(member)
    if is_program(member):
        digest = hashlib.sha256(f"{digest}{_PROGRAM}".encode()).hexdigest()
    return FileUpload(digest, os.path.basename(plain), Contents([member]), member.facts.st_size, False, (crc,))


def _directory(path: Directory) -> FileUpload:
    root = os.path.abspath(path)
    if os.path.isfile(root):
        raise PayloadError(f"Directory({str(path)!r}) is a file", hint=f"write File({str(path)!r})")
    contents = path.contents()
    digests = [_digest(member) for member in contents.files]
    manifest = [
        f"{member.name}\0{digest}{_PROGRAM if is_program(member) else ''}\n"
        for member, (digest, _) in zip(contents.files, digests)
    ]
    manifest += [f"{name}/\n" for name in contents.folders]
    manifest += [f"{name}\0->{target}\n" for name, target in contents.links]
    size = sum(member.facts.st_size for member in contents.files)
    digest = hashlib.sha256("".join(manifest).encode("utf-8", "surrogateescape")).hexdigest()
    return FileUpload(digest, os.path.basename(root) or "root", contents, size, True, tuple(crc for _, crc in digests))


def _walk(folder: str, prefix: str, above: tuple[str, ...], files: list[Member], folders: list[str]) -> None:
    """Note every file below a folder; follow links, but not back to a folder `above`."""
    count = len(files)
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            real = os.path.realpath(entry.path)
            if real not in above:
                _walk(entry.path, f"{prefix}{entry.name}/", (*above, real), files, folders)
        elif entry.is_file():
            files.append(Member(prefix + entry.name, entry.path, entry.stat()))
    if prefix and count == len(files):
        folders.append(prefix[:-1])


def is_program(member: Member) -> bool:
    """Whether its owner may execute it: the same content with another mode is another file on the host."""
    return bool(member.facts.st_mode & stat.S_IXUSR)


def _digest(member: Member) -> tuple[str, int]:
    """Return the SHA-256 and the CRC-32 of a file; remember them while the file system shows no change.

    The time of its last change of any kind (ctime) is part of that: it cannot be set back. Two changes within one
    tick of the file system's clock (milliseconds) look the same. Of a file that grows, what was there counts.
    """
    facts = member.facts
    key = (member.path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    if key not in _digests:
        digest, crc, left = hashlib.sha256(), 0, facts.st_size
        with open(member.path, "rb", buffering=0) as file:  # noqa: PTH123 - as above
            while chunk := file.read(min(_CHUNK, left)):
                digest.update(chunk)
                crc = zlib.crc32(chunk, crc)
                left -= len(chunk)
        _digests[key] = digest.hexdigest(), crc
    return _digests[key]


_LEAF = 4 << 20
_HASHING_THREADS = 8


def name_of_buffer(view: memoryview) -> tuple[str, int]:
    """Return the name of a buffer by its content, and its CRC-32, computed on all cores.

    The name of up to 4 MB is their SHA-256. That of a larger buffer is the SHA-256 of a fixed text and the digests of
    its pieces of 4 MB.
    """
    if len(view) <= _LEAF:
        return hashlib.sha256(view).hexdigest(), zlib.crc32(view)
    leaves = [view[at : at + _LEAF] for at in range(0, len(view), _LEAF)]
    # hashlib and zlib release the GIL for large pieces, so the threads use several cores.
    threads = min(os.cpu_count() or 1, _HASHING_THREADS)
    try:
        with concurrent.futures.ThreadPoolExecutor(threads, "clusterfn-hash") as pool:
            try:
                hashing = pool.map(_sha256, leaves)
                # This thread computes the checksum, so Ctrl-C ends that by itself.
                checksum = functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), leaves, 0)
                digests = list(hashing)
            finally:
                # After Ctrl-C the pool would otherwise hash all pieces.
                pool.shutdown(cancel_futures=True)
    except RuntimeError:
        # The program is ending, and starts no more threads.
        digests, checksum = list(map(_sha256, leaves)), zlib.crc32(view)
    return hashlib.sha256(b"clusterfn pieces of 4 MB\0" + b"".join(digests)).hexdigest(), checksum


def _sha256(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()
