"""Find the archive of a Python in python-build-standalone, with the release and the mirror that uv itself would take.

uv knows which archives there are. Their hashes are in the file SHA256SUMS beside them; where a mirror has none, the
archive is downloaded once to compute its hash.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from clusterfn.bridge.builder.fetch import make_request, masked
from clusterfn.environment import uv
from clusterfn.environment.lock import STANDALONE, LockedPackage, Unsolved
from clusterfn.environment.wheel_files import without_password
from clusterfn.errors import LockError

Say = Callable[[str], None]

_NAMES = {"linux-64": "linux-x86_64-gnu", "linux-aarch64": "linux-aarch64-gnu"}
_SUMS = "SHA256SUMS"
_ANSWER_S = 5.0
_MOST = 1 << 20  # bytes of SHA256SUMS
_BLOCK = 1 << 18
_HINT = (
    "check your network and proxy; name a mirror with UV_PYTHON_INSTALL_MIRROR, or take Python from elsewhere: "
    "env_python: conda or host"
)


def find_python(minor: str, platform: str, program: str, folder: Path, say: Say) -> LockedPackage:
    """Return the newest Python of a minor version, with its hash.

    Args:
        platform: conda's name of the host's.
        program: The path of uv.
        folder: Of the project, where uv's settings begin.

    Raises:
        Unsolved: There is no such Python.
        LockError: The mirror does not answer.
    """
    told = _known_to_uv(minor, platform, program, folder)
    if not told:
        raise Unsolved(LockError(f"python-build-standalone has no Python {minor} for {platform}", hint=_HINT))
    url, version = str(told[0]["url"]), str(told[0]["version"])
    file = unquote(urlsplit(url).path).rpartition("/")[2]
    if not file.endswith(".tar.gz"):
        raise LockError(f"uv names an archive that is no .tar.gz: {masked(url)}", hint=_HINT)
    try:
        sha256 = _published_hash(url, file) or _computed_hash(url, say)
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise LockError(
            f"Python {version} cannot be fetched from python-build-standalone", evidence=[f"{masked(url)}: {why}"],
            hint=_HINT,
        ) from error  # fmt: skip
    say(f"Python {version} comes from python-build-standalone: {masked(url)}")
    return LockedPackage("python", version, "", STANDALONE, file, without_password(url), sha256, platform)


def _known_to_uv(minor: str, platform: str, program: str, folder: Path) -> list[dict[str, Any]]:
    """Return what uv says of the newest archive, if it knows one; it asks no server."""
    if platform not in _NAMES:
        return []
    argv = [program, "python", "list", f"cpython-{minor}-{_NAMES[platform]}", "--only-downloads", "--offline"]
    done = subprocess.run(
        [*argv, "--output-format", "json"], stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, check=False,
        env=uv.plain_variables(), encoding="utf-8", errors="replace",
    )  # fmt: skip
    try:
        return [dict(each) for each in json.loads(done.stdout) if each.get("url")]
    except ValueError as error:
        lines = masked(done.stderr).strip().splitlines()
        raise LockError("uv does not list the Pythons that it knows", evidence=lines[:10], hint=_HINT) from error


def _published_hash(url: str, file: str) -> str:
    """Return the hash that stands beside the archive; "" if there is none."""
    parts = urlsplit(url)
    beside = urlunsplit(parts._replace(path=f"{parts.path.rpartition('/')[0]}/{_SUMS}"))
    try:
        with urllib.request.urlopen(make_request(beside, 0), timeout=_ANSWER_S) as answer:
            lines = answer.read(_MOST).decode("utf-8", "replace").splitlines()
    except urllib.error.HTTPError as error:
        error.close()
        return ""
    except urllib.error.URLError:
        if parts.scheme == "file":  # it is not there
            return ""
        raise
    rows = [line.split() for line in lines]
    return next((row[0].lower() for row in rows if len(row) == 2 and row[1].lstrip("*") == file), "")


def _computed_hash(url: str, say: Say) -> str:
    say(f"there is no {_SUMS} beside {masked(url)}: it is downloaded to compute its hash")
    found = hashlib.sha256()
    with urllib.request.urlopen(make_request(url, 0), timeout=_ANSWER_S) as answer:
        for block in iter(lambda: answer.read(_BLOCK), b""):
            found.update(block)
    return found.hexdigest()
