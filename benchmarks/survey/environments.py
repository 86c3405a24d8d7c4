"""The environments of the survey: the interpreters, the packages at their pinned versions, and the bridge."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from clusterfn.hosts import bridge_bundle

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".survey"
PACKAGES = HERE / "packages.txt"
_UV = Path(sys.executable).with_name("uv")


class NotInstalled(Exception):
    """What an environment needs is not here; the message is uv's last word."""


def surveyed(path: Path = PACKAGES) -> list[str]:
    """Return the packages as `name==version`, those that are there only because others need them left out."""
    text = path.read_text().partition("# Not surveyed")[0]
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@functools.lru_cache
def interpreter(minor: int) -> str | None:
    """Return a Python 3.minor of this machine: pyenv's, or the one on PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [*sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}")), shutil.which(f"python3.{minor}")]
    for path in filter(None, map(str, filter(None, found))):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def environment(name: str, requirements: Path, minor: int = 11) -> str:
    """Return the interpreter of an environment with these requirements, which is made where it is not there yet.

    Raises:
        NotInstalled: There is no such Python, or uv cannot install it.
    """
    folder = CACHE / "environments" / f"{name}-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:8]}-3.{minor}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        base = interpreter(minor)
        if base is None:
            raise NotInstalled(f"no Python 3.{minor} was found")
        print(f"Installing {folder.name}", flush=True)
        _uv("venv", "--clear", "--python", base, str(folder))
        _uv("pip", "install", "--no-deps", "--only-binary", ":all:", "--python", str(python), "-r", str(requirements))
        complete.touch()
    return str(python)


def _uv(*words: str) -> None:
    more = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
    environ = {**os.environ, **more, "VIRTUAL_ENV": ""}
    ran = subprocess.run([_UV, *words, "-q", "--no-config"], capture_output=True, text=True, check=False, env=environ)
    if ran.returncode:
        raise NotInstalled(ran.stderr.strip()[-500:])


def bridge() -> Path:
    """Return a folder with the files that a host has of clusterfn."""
    bundle = bridge_bundle.bridge()
    folder = CACHE / "bridge" / bundle.digest[:16]
    if not folder.exists():
        making = folder.with_suffix(".new")
        shutil.rmtree(making, ignore_errors=True)
        for name, data in bundle.files.items():
            path = making / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        making.rename(folder)
    return folder
