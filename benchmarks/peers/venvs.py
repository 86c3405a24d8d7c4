"""One environment for each peer, made once for each list of requirements, byte-compiled, readable by all accounts."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab import Lab

REQUIREMENTS = Path(__file__).parent / "requirements"
_COMPLETE = "complete"


class NotInstalled(Exception):
    """A peer that cannot be installed here; the message is pip's last word."""


def python_of(peer: str, python: Path, lab: Lab | None) -> Path:
    """The interpreter of the peer's environment, which is empty where there are no requirements.

    Raises:
        NotInstalled: pip refuses.
    """
    listed = REQUIREMENTS / f"{peer}.txt"
    text = listed.read_bytes() if listed.exists() else b""
    parent = lab.root / "peers" if lab else Path(tempfile.gettempdir()) / "clusterfn-peers"
    folder = parent / f"{peer}-{hashlib.sha256(text + str(python).encode()).hexdigest()[:12]}"
    if not (folder / _COMPLETE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        parent.mkdir(mode=0o755, exist_ok=True)
        _make(folder, python, listed if text else None)
    return folder / "bin/python"


def versions(peer: str) -> str:
    """What is installed of a peer, in words: the packages that it is known by."""
    listed = REQUIREMENTS / f"{peer}.txt"
    lines = listed.read_text().splitlines() if listed.exists() else []
    return ", ".join(line.replace("==", " ") for line in lines if line.startswith(("dask", "distributed", peer)))


def _make(folder: Path, python: Path, requirements: Path | None) -> None:
    print(f"installing {folder.name}", flush=True)
    _run(python, "-m", "venv", folder)
    if requirements:
        _run(folder / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "-r", requirements)
    _run(folder / "bin/python", "-m", "compileall", "-q", folder / "lib", may_fail=True)  # of other Pythons too
    (folder / _COMPLETE).touch()


def _run(*argv: str | Path, may_fail: bool = False) -> None:
    ran = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
    if ran.returncode and not may_fail:
        raise NotInstalled((ran.stderr.strip().splitlines() or ["it said nothing"])[-1])
