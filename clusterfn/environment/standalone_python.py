"""Find an archive of python-build-standalone, and its hash.

uv knows which archives there are; the release and the mirror are those that uv itself would take. The hashes are in
the file SHA256SUMS beside them. Where a mirror has none, the archive is downloaded once to compute its hash.
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
from clusterfn.environment import uv
from clusterfn.environment.conda_solver import Say, machine_of
from clusterfn.environment.lock import LockedPackage, Unsolved
from clusterfn.environment.package_sources import without_password
from clusterfn.environment.python_source import STANDALONE
from clusterfn.errors import LockError

_SUMS = "SHA256SUMS"
_ANSWER_S = 5.0
# SHA256SUMS has some kilobytes, and a wrong file on a mirror may have gigabytes.
_MOST = 1 << 20
_BLOCK = 1 << 18
_PYTHON_HINT = (
    'take a Python of the host: environment="FILE[python:host]", or "FILE[python:/path/to/python]"; or check '
    "your network and proxy, or name a mirror with UV_PYTHON_INSTALL_MIRROR"
)


def find_python(minor: str, platform: str, folder: Path) -> LockedPackage:
    """Return the newest Python of a minor version that uv knows, with the settings of a folder; ask no server.

    Raise Unsolved if there is no such Python for the platform, as conda names it.
    """
    name = f"cpython-{minor}-linux-{machine_of(platform)}-gnu"
    done = subprocess.run(
        [uv.find_uv(), "python", "list", name, "--only-downloads", "--offline", "--output-format", "json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        check=False,
        env=uv.plain_variables(),
        encoding="utf-8",
        errors="replace",
    )
    try:
        listed = [python for python in json.loads(done.stdout) if python.get("url")]
    except ValueError as error:
        lines = masked(done.stderr).strip().splitlines()
        raise LockError("uv does not list the Pythons that it knows", evidence=lines[:10], hint=_PYTHON_HINT) from error
    if platform not in uv.LINUX or not listed:
        raise Unsolved(f"python-build-standalone has no Python {minor} for {platform}", hint=_PYTHON_HINT)
    return LockedPackage("python", str(listed[0]["version"]), STANDALONE, str(listed[0]["url"]), "", platform)


def with_hash(python: LockedPackage, say: Say) -> LockedPackage:
    """Return a Python with its hash, which only the mirror knows; raise LockError if that does not answer."""
    url, shown = python.url, masked(python.url)
    try:
        sha256 = _published_hash(url, python.file)
        if not sha256:
            say(f"there is no {_SUMS} beside {shown}: it is downloaded to compute its hash")
            found = hashlib.sha256()
            with urllib.request.urlopen(make_request(url, 0), timeout=_ANSWER_S) as answer:
                for block in iter(lambda: answer.read(_BLOCK), b""):
                    found.update(block)
            sha256 = found.hexdigest()
    except (OSError, ValueError, http.client.HTTPException) as error:
        what = f"Python {python.version} cannot be fetched from python-build-standalone"
        evidence = [f"{shown}: {getattr(error, 'reason', None) or error}"]
        raise LockError(what, evidence=evidence, hint=_PYTHON_HINT) from error
    say(f"Python {python.version} comes from python-build-standalone: {shown}")
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
        # A mirror in a folder may have no such file.
        if parts.scheme == "file":
            return ""
        raise
    rows = [line.split() for line in lines]
    return next((row[0].lower() for row in rows if len(row) == 2 and row[1].lstrip("*") == file), "")
