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
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from clusterfn.bridge.builder.fetch import make_request
from clusterfn.bridge.builder.plan import masked
from clusterfn.environment import conda_solver, uv
from clusterfn.environment.conda_solver import Say
from clusterfn.environment.lock import STANDALONE, LockedPackage, Unsolved
from clusterfn.environment.wheel_files import without_password
from clusterfn.errors import LockError

_SUMS = "SHA256SUMS"
_ANSWER_S = 5.0
_MOST = 1 << 20  # bytes of SHA256SUMS
_BLOCK = 1 << 18
_HINT = (
    'take the host\'s own Python, environment="FILE[python:host]" or `env_python: host` in clusterfn.yml; or check '
    "your network and proxy, or name a mirror with UV_PYTHON_INSTALL_MIRROR"
)


def find_python(minor: str, platform: str, program: str, folder: Path) -> LockedPackage:
    """Return the newest Python of a minor version that uv knows; asks no server.

    Args:
        platform: conda's name of the host's.
        folder: Of the project, where uv's settings begin.

    Raises:
        Unsolved: There is no such Python.
    """
    name = f"cpython-{minor}-linux-{conda_solver.machine_of(platform)}-gnu"
    argv = [program, "python", "list", name, "--only-downloads", "--offline", "--output-format", "json"]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, check=False, env=uv.plain_variables(),
        encoding="utf-8", errors="replace",
    )  # fmt: skip
    try:
        told = [each for each in json.loads(done.stdout) if each.get("url")]
    except ValueError as error:
        lines = masked(done.stderr).strip().splitlines()
        raise LockError("uv does not list the Pythons that it knows", evidence=lines[:10], hint=_HINT) from error
    if platform not in uv.LINUX or not told:
        raise Unsolved(f"python-build-standalone has no Python {minor} for {platform}", hint=_HINT)
    return LockedPackage("python", str(told[0]["version"]), STANDALONE, str(told[0]["url"]), "", platform)


def with_hash(python: LockedPackage, say: Say) -> LockedPackage:
    """Return a Python with its hash, which only the mirror knows.

    Raises:
        LockError: The mirror does not answer.
    """
    url, version, file = python.url, python.version, python.file
    try:
        sha256 = _published_hash(url, file) or _computed_hash(url, say)
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise LockError(
            f"Python {version} cannot be fetched from python-build-standalone", evidence=[f"{masked(url)}: {why}"],
            hint=_HINT,
        ) from error  # fmt: skip
    say(f"Python {version} comes from python-build-standalone: {masked(url)}")
    return replace(python, url=without_password(url), sha256=sha256)


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
