"""Get one archive onto the host by a download with resume and retries, and check its SHA-256.

Knows nothing of packages' contents.
"""

import base64
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Optional, Sequence

from ..supervisor import publish
from .plan import PlannedPackage, local_path, masked
from .progress import BuildFailed

_BLOCK = 1 << 18
# Only tries in a row without a byte count, so that a slow network is no failure.
_TRIES = 7
# The pause doubles each time, to half a minute in total.
_FIRST_PAUSE_S = 0.5
_SILENT_S = 60.0
# A server that is only asked whether it can be reached must not hold up the call.
_ANSWER_S = 8.0
_ASKED_AT_ONCE = 8
# These answers stay the same however often one asks.
_FINAL = (400, 401, 403, 404, 405, 407, 410, 451)
_BROKEN = (OSError, http.client.HTTPException)


def check_archive(package: "PlannedPackage", path: str, moved: "Callable[[int], None]", url: str = "") -> None:
    """Raise unless an archive, which came from `url`, has the SHA-256 of the lock.

    `moved` gets 0 after each block, and may raise to stop.
    """
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            found.update(block)
            moved(0)
    if found.hexdigest() != package.sha256:
        seen = "%s has SHA-256 %s, the lock wants %s" % (masked(url or path), found.hexdigest(), package.sha256)
        hint = "call again; if it stays, the channel serves another file: lock again"
        message = "%s is damaged: %s" % (package.label, seen)
        raise BuildFailed(message, stage="fetch", need=[package.sha256], hint=hint)


def fetch_archive(package: "PlannedPackage", target: str, moved: "Callable[[int], None]") -> None:
    """Download an archive by way of `<target>.part`: `target` appears whole and checked, or not at all.

    `moved` gets the number of bytes of each block, and may raise to stop.
    """
    part = target + ".part"
    resumed = _size(part) > 0
    _download(package, part, moved)
    try:
        check_archive(package, part, moved, package.url)
    except BuildFailed:
        os.unlink(part)
        # A fresh download that is damaged would be damaged again.
        if not resumed:
            raise
        # What was resumed may have been another file, so this try begins at the first byte.
        return fetch_archive(package, target, moved)
    return os.rename(part, target)


def _download(package: "PlannedPackage", part: str, moved: "Callable[[int], None]") -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            return _send_request(package, part, moved)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                return None
            why, is_final = "HTTP %d, %s" % (error.code, error.reason), error.code in _FINAL
        except _BROKEN as error:
            # Only an error of the disk has a file's name, and asking again does not help against it.
            if getattr(error, "filename", None) is not None:
                raise
            why = str(getattr(error, "reason", None) or error)
            is_final = "CERTIFICATE_VERIFY_FAILED" in why
        failures = 1 if _size(part) > before else failures + 1
        if is_final or failures >= _TRIES:
            message = "%s cannot be fetched from %s: %s" % (package.label, masked(package.url), why)
            hint = "let the client fetch (fetch_on: client), or set https_proxy on the host"
            raise BuildFailed(message, stage="fetch", need=[package.sha256], hint=hint)
        until = time.monotonic() + _FIRST_PAUSE_S * 2 ** (failures - 1)
        while time.monotonic() < until:
            moved(0)
            time.sleep(0.1)


def _send_request(package: "PlannedPackage", part: str, moved: "Callable[[int], None]") -> None:
    # The request begins at the first missing byte.
    have = _size(part)
    got = 0
    if have and have == package.size:
        return
    with urllib.request.urlopen(make_request(package.url, have), timeout=_SILENT_S) as answer:
        expected = answer.headers.get("Content-Length")
        resumes = have and answer.status == 206
        with open(part, "ab" if resumes else "wb", 0) as file:
            for block in iter(lambda: answer.read(_BLOCK), b""):
                try:
                    publish.write_all(file.fileno(), block)
                except OSError as error:
                    # By this name the caller knows that the disk has failed, not the network.
                    error.filename = part
                    raise
                got += len(block)
                moved(len(block))
    if expected is not None and got < int(expected):
        raise http.client.IncompleteRead(b"", int(expected) - got)


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


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def ask_sizes(packages: "Sequence[PlannedPackage]") -> "tuple[dict[str, bool], dict[str, int]]":
    """Return which servers can be reached, by `origin`, and the sizes that they tell, by SHA-256.

    Ask each server for one package, then those that answer for the sizes of all others.
    """
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        origins = {origin(package): package for package in packages}
        reached = dict(zip(origins, (size is not None for size in pool.map(_ask_size, origins.values()))))
        reachable = [package for package in packages if reached[origin(package)]]
        answers = zip(reachable, pool.map(_ask_size, reachable))
        return reached, {package.sha256: size for package, size in answers if size}


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
