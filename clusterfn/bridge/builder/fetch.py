"""Get one archive onto the host and check its SHA-256: download it with resume and retries, or join its pieces.

The client sends large archives in pieces (`blobs/<sha256>.pieces/<n>-of-<count>`), so that a connection that breaks
costs one piece. Knows nothing of packages' contents.
"""

import base64
import hashlib
import http.client
import io
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from ..layout import blob, pieces_dir
from .errors import BuildFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Sequence

    from .plan import PlannedPackage

_BLOCK = 1 << 18  # of the network
_TRIES = 7  # in a row without a byte
_FIRST_PAUSE_S = 0.5  # doubled each time: half a minute in total
_SILENT_S = 60.0
_ANSWER_S = 8.0  # when a server is only asked whether it can be reached
_ASKED_AT_ONCE = 8
_FINAL = (400, 401, 403, 404, 405, 407, 410, 451)  # asking again will not help
_BROKEN = (OSError, http.client.HTTPException)
_DISK_BLOCK = 1 << 20


def _hash_file(path: str, moved: "Callable[[int], None]") -> str:
    """Compute the SHA-256; call `moved` with 0 after each block, which may raise to stop."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_DISK_BLOCK), b""):
            found.update(block)
            moved(0)
    return found.hexdigest()


def check_archive(package: "PlannedPackage", path: str, moved: "Callable[[int], None]") -> None:
    """Raise unless an archive has the SHA-256 of the lock."""
    found = _hash_file(path, moved)
    if found != package.sha256:
        raise _wrong_hash(package, found, path)


def _wrong_hash(package: "PlannedPackage", found: str, where: str) -> BuildFailed:
    return BuildFailed(
        "%s is damaged: %s has SHA-256 %s, the lock wants %s" % (package.label, masked(where), found, package.sha256),
        stage="fetch", hint="call again; if it stays, the channel serves another file: lock again",
        need=[package.sha256],
    )  # fmt: skip


def local_path(url: str) -> str:
    """Return the path of a file:// address; "" for others."""
    parts = urllib.parse.urlsplit(url)
    return urllib.request.url2pathname(parts.path) if parts.scheme == "file" else ""


def fetch_archive(package: "PlannedPackage", target: str, moved: "Callable[[int], None]") -> None:
    """Download an archive by way of `<target>.part`: `target` appears whole and checked, or not at all.

    `moved` gets the number of bytes of each block, and may raise to stop.
    """
    part = target + ".part"
    for _ in range(2):  # what was resumed may have been another file: retry from the start
        resumed = _size(part) > 0
        _download(package, part, moved)
        found = _hash_file(part, moved)
        if found == package.sha256:
            os.rename(part, target)
            return
        os.unlink(part)
        if not resumed:
            break
    raise _wrong_hash(package, found, package.url)


def _download(package: "PlannedPackage", part: str, moved: "Callable[[int], None]") -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            _send_request(package, part, moved)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                return
            problem: "Exception" = error
            failures = _TRIES if error.code in _FINAL else failures
        except _BROKEN as error:
            if getattr(error, "filename", None) is not None:  # the disk, not the network
                raise
            problem = error
            failures = _TRIES if "CERTIFICATE_VERIFY_FAILED" in str(error) else failures
        failures = 1 if _size(part) > before and failures < _TRIES else failures + 1
        if failures >= _TRIES:
            reason = getattr(problem, "reason", None) or problem
            code = "HTTP %s, " % problem.code if isinstance(problem, urllib.error.HTTPError) else ""
            raise BuildFailed(
                "%s cannot be fetched from %s: %s%s" % (package.label, masked(package.url), code, reason),
                stage="fetch", need=[package.sha256],
                hint="let the client fetch (fetch_on: client), or set https_proxy on the host",
            )  # fmt: skip
        until = time.monotonic() + _FIRST_PAUSE_S * 2 ** (failures - 1)
        while time.monotonic() < until:
            moved(0)
            time.sleep(0.1)


def _send_request(package: "PlannedPackage", part: str, moved: "Callable[[int], None]") -> None:
    have = _size(part)  # the request begins at the first missing byte
    if have and have == package.size:
        return
    with urllib.request.urlopen(make_request(package.url, have), timeout=_SILENT_S) as answer:
        resumes = have and answer.status == 206
        with _DiskFile(part, "ab" if resumes else "wb") as file:
            expected = answer.headers.get("Content-Length")
            got = 0
            for block in iter(lambda: answer.read(_BLOCK), b""):
                file.write(block)
                got += len(block)
                moved(len(block))
    if expected is not None and got < int(expected):
        raise http.client.IncompleteRead(b"", int(expected) - got)


class _DiskFile:
    """A file whose errors carry its name, to distinguish them from the network's."""

    def __init__(self, path: str, mode: str) -> None:
        self._path = path
        self._file: "Any" = io.FileIO(path, mode)

    def __enter__(self) -> "_DiskFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            error.filename = self._path
            raise


def make_request(url: str, have: int) -> urllib.request.Request:
    """Make a request, with a Range for what is missing, and the address's user and password as a header."""
    parts = urllib.parse.urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=place)))
    request.add_header("User-Agent", "clusterfn")
    if have:
        request.add_header("Range", "bytes=%d-" % have)
    if at:
        plain = urllib.parse.unquote(user).encode()
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(plain).decode())
    return request


def masked(url: str) -> str:
    """Return an address without its password and without the token of a channel, so that it can be shown."""
    return re.sub(r"/t/[^/\s]+/", "/t/***/", re.sub(r"://[^/\s]*@", "://***@", url))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def join_pieces(root: str, sha256: str, token: str, moved: "Callable[[int], None]") -> "Optional[str]":
    """Return the path of the archive, joined from its pieces if they are complete; None if it is missing.

    `token` is the builder's, for the names of temporary files; `moved` gets 0 after each block, and may raise to stop.
    """
    final, folder = blob(root, sha256), pieces_dir(root, sha256)
    if os.path.isfile(final):
        return final
    names = complete_pieces(folder)
    if not names:
        return None
    aside = "%s.%s" % (final, token)
    try:
        _concatenate(aside, [os.path.join(folder, name) for name in names], moved)
        os.rename(aside, final)
    except FileNotFoundError:  # another builder was faster
        return final if os.path.isfile(final) else None
    finally:
        if os.path.exists(aside):
            os.unlink(aside)
    shutil.rmtree(folder, ignore_errors=True)
    return final


def complete_pieces(folder: str) -> "list[str]":
    """List the names of all pieces in order; empty if one is missing."""
    try:
        found = [name.partition("-of-") for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    counts = {int(count) for number, _, count in found if number.isdecimal() and count.isdecimal()}
    for count in counts:
        names = ["%d-of-%d" % (number, count) for number in range(count)]
        if set(names) <= {"".join(parts) for parts in found}:
            return names
    return []


def _concatenate(path: str, pieces: "list[str]", moved: "Callable[[int], None]") -> None:
    with open(path, "wb") as target:
        for piece in pieces:
            with open(piece, "rb") as source:
                for block in iter(lambda: source.read(_DISK_BLOCK), b""):
                    target.write(block)
                    moved(0)


def ask_sizes(packages: "Sequence[PlannedPackage]") -> "tuple[dict[str, bool], dict[str, int]]":
    """Return which servers can be reached, by `origin`, and the sizes that they tell, by SHA-256.

    Ask each server for one package, then those that answer for the sizes of all others.
    """
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        origins = {origin(each): each for each in packages}
        reached = dict(zip(origins, (size is not None for size in pool.map(_ask_size, origins.values()))))
        reachable = [each for each in packages if reached[origin(each)]]
        answers = zip(reachable, pool.map(_ask_size, reachable))
        return reached, {each.sha256: size for each, size in answers if size}


def origin(package: "PlannedPackage") -> str:
    """Return the server of a package; of a local file its address."""
    parts = urllib.parse.urlsplit(package.url)
    return package.url if parts.scheme == "file" else "%s://%s" % (parts.scheme, parts.netloc)


def _ask_size(package: "PlannedPackage") -> "Optional[int]":
    """Return the size of the archive, 0 if its server does not say; None if it cannot be downloaded."""
    path = local_path(package.url)
    if path or not package.url:
        return os.stat(path).st_size if os.path.isfile(path) else None
    request = make_request(package.url, 0)
    request.get_method = lambda: "HEAD"  # type: ignore[method-assign]
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, ValueError):
        return None
