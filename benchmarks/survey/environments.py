"""The environments of the survey: the interpreters, the packages at their pinned versions, and the bridge."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from clusterfn.hosts import bridge_bundle

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".survey"
PACKAGES = HERE / "packages.txt"
# What the packages of a sample need, and what the survey compares with
_NEEDED_BY_A_FEW = (
    "annotated-types", "certifi", "charset-normalizer", "cloudpickle", "dill", "idna", "pydantic-core",
    "typing-extensions", "typing-inspection", "urllib3",
)  # fmt: skip
_UV = Path(sys.executable).with_name("uv")


_making = threading.RLock()  # of an environment, or the bridge: two tasks may need the same one


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


def pinned(names: Sequence[str]) -> str:
    """Return the lines of packages.txt for some packages and what these need."""
    wanted = {*names, *_NEEDED_BY_A_FEW}
    return "\n".join(line for line in PACKAGES.read_text().splitlines() if line.partition("==")[0] in wanted)


def environment(name: str, requirements: str, minor: int = 11) -> str:
    """Return the interpreter of an environment with these requirements, which is made where it is not there yet.

    Raises:
        NotInstalled: There is no such Python, or uv cannot install it.
    """
    folder = CACHE / "environments" / f"{name}-{hashlib.sha256(requirements.encode()).hexdigest()[:8]}-3.{minor}"
    python, complete = folder / "bin" / "python", folder / "complete"
    with _making:
        if not complete.exists():
            base = interpreter(minor)
            if base is None:
                raise NotInstalled(f"no Python 3.{minor} was found")
            print(f"Installing {folder.name}", flush=True)
            _uv("venv", "--clear", "--python", base, str(folder))
            listed = folder / "requirements.txt"
            listed.write_text(requirements)
            _uv("pip", "install", "--no-deps", "--only-binary", ":all:", "--python", str(python), "-r", str(listed))
            complete.touch()
    return str(python)


def _uv(*words: str) -> None:
    """Run uv, by the indexes of pip's own settings, which it does not read."""
    asked = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    found = dict(re.findall(r"^[\w:]+\.(extra-index-url|find-links)='(.*)'", settings, re.MULTILINE))
    names = {"extra-index-url": "UV_EXTRA_INDEX_URL", "find-links": "UV_FIND_LINKS"}
    more = {names[key]: value.replace("\\n", " ") for key, value in found.items()}
    environ = {**os.environ, **more, "VIRTUAL_ENV": "", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    ran = subprocess.run([_UV, *words, "-q", "--no-config"], capture_output=True, text=True, check=False, env=environ)
    if ran.returncode:
        raise NotInstalled(ran.stderr.strip()[-500:])


def bridge() -> Path:
    """Return a folder with the files that a host has of clusterfn."""
    bundle = bridge_bundle.bridge()
    folder = CACHE / "bridge" / bundle.digest[:16]
    with _making:
        if not folder.exists():
            making = folder.with_suffix(".new")
            shutil.rmtree(making, ignore_errors=True)
            for name, data in bundle.files.items():
                path = making / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            making.rename(folder)
    return folder
