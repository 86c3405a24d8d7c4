"""The other Pythons of this machine, wherever the home is: those of the lab, of pyenv, and in PATH. No test in here."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LAB = Path("/opt/clusterfn-lab/python")


@functools.cache
def interpreter(version: str) -> str | None:
    """One of this minor version, "3.9", that answers; None if there is none. A program of pyenv may know no version."""
    if version == ".".join(map(str, sys.version_info[:2])):
        return sys.executable
    return next((each for each in _candidates(version) if _answers(each, version)), None)


def _candidates(version: str) -> Iterator[str]:
    yield str(LAB / version / "bin" / f"python{version}")
    for root in (os.environ.get("PYENV_ROOT"), Path.home() / ".pyenv"):
        yield from map(str, sorted(Path(root or "/nowhere").glob(f"versions/{version}.*/bin/python{version}")))
    yield shutil.which(f"python{version}") or ""


def _answers(python: str, version: str) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.startswith(f"{version}.")
