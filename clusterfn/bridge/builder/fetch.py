"""Gets one archive from its address into a file of the host, resumed where it broke off, and checks its SHA-256.

Knows nothing of packages' contents.
"""

import base64
import hashlib
import http.client
import io
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request

from .failure import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .plan import Package

_BLOCK = 1 << 18
_TRIES = 7  # without a byte between them
_FIRST_PAUSE_S = 0.5  # doubled each time: half a minute in all
_SILENT_S = 60.0
_FINAL = (400, 401, 403, 404, 405, 407, 410, 451)  # asking again will not help
_BROKEN = (OSError, http.client.HTTPException)


def digest(path: str, moved: "Callable[[int], None]") -> str:
    """The SHA-256 of a file; `moved` is called after each block, to be stopped, with 0."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
            moved(0)
    return found.hexdigest()


def check(package: "Package", path: str, moved: "Callable[[int], None]") -> None:
    """Refuse an archive that is not the lock's."""
    found = digest(path, moved)
    if found != package.sha256:
        raise wrong(package, found, path)


def wrong(package: "Package", found: str, where: str) -> Failed:
    """The error that names the package and both hashes."""
    return Failed(
        "%s is damaged: %s has SHA-256 %s, the lock wants %s" % (package.label, masked(where), found, package.sha256),
        stage="fetch", hint="call again; if it stays, the channel serves another file: lock anew",
        need=[package.sha256],
    )  # fmt: skip


def local_path(url: str) -> str:
    """The path of a file:// address, else nothing."""
    parts = urllib.parse.urlsplit(url)
    return urllib.request.url2pathname(parts.path) if parts.scheme == "file" else ""


def fetch(package: "Package", target: str, moved: "Callable[[int], None]") -> None:
    """Download into `target`, by way of `<target>.part`.

    Args:
        package: What; it has an address.
        target: Where to; the file appears whole and checked, or not at all.
        moved: Called with the bytes of each block; may raise to stop.
    """
    part = target + ".part"
    for _ in range(2):  # what was resumed may have been another file: once more from the start
        resumed = _size(part) > 0
        _download(package, part, moved)
        found = digest(part, moved)
        if found == package.sha256:
            os.rename(part, target)
            return
        os.unlink(part)
        if not resumed:
            break
    raise wrong(package, found, package.url)


def _download(package: "Package", part: str, moved: "Callable[[int], None]") -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            _once(package, part, moved)
            return
        except urllib.error.HTTPError as error:
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
            raise _unreachable(package, problem)
        _pause(_FIRST_PAUSE_S * 2 ** (failures - 1), moved)


def _once(package: "Package", part: str, moved: "Callable[[int], None]") -> None:
    """One request, from the byte that is there already."""
    have = _size(part)
    if have and have == package.size:
        return
    with urllib.request.urlopen(request(package.url, have), timeout=_SILENT_S) as answer:
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
    """A file whose errors carry its name, so that they are not taken for the network's."""

    def __init__(self, path: str, mode: str) -> None:
        self._path = path
        self._file: "Any" = io.FileIO(path, mode)

    def __enter__(self) -> "_DiskFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            error.filename = self._path
            raise


def request(url: str, have: int) -> urllib.request.Request:
    """With a Range for what is missing, and with the address's own name and password as a header."""
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
    """An address that can be shown: without password and without a channel's token."""
    return re.sub(r"/t/[^/\s]+/", "/t/***/", re.sub(r"://[^/\s]*@", "://***@", url))


def _unreachable(package: "Package", problem: Exception) -> Failed:
    reason = getattr(problem, "reason", None) or problem
    code = "HTTP %s, " % problem.code if isinstance(problem, urllib.error.HTTPError) else ""
    return Failed(
        "%s cannot be fetched from %s: %s%s" % (package.label, masked(package.url), code, reason), stage="fetch",
        hint="let the client fetch (fetch_on: client), or set https_proxy on the host", need=[package.sha256],
    )  # fmt: skip


def _pause(seconds: float, moved: "Callable[[int], None]") -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        moved(0)
        time.sleep(0.1)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
