"""Lays out the bridge as on a host, perhaps with other limits. No test in here."""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from clusterfn.hosts import bridge_bundle
from tests.bridge.host import clean_environ


def layout_bridge(target: Path, *changes: tuple[str, str, str]) -> Path:
    """The tree of bridge/<hash>, from this checkout.

    Args:
        changes: A module, how a line in it begins, and what is there instead: another limit.
    """
    if changes:
        shutil.copytree(_compiled_bridge(), target)
    else:
        for name, content in bridge_bundle.bridge().files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for module, before, after in changes:
        path = target / "_clusterfn" / "bridge" / module
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        text, count = re.subn(rf"(?m)^{re.escape(before)}(?=\s)", after, path.read_text(encoding="utf-8"))
        assert count == 1, f"{module}: {before}"
        path.write_text(text, encoding="utf-8")
    return target


PATIENT, IMPATIENT = "ROOM_PAUSES_S = (0.5, 1.0, 2.0, 4.0) + (5.0,) * 10", "ROOM_PAUSES_S = (0.5, 0.5)"


def be_impatient(root: Path) -> None:
    """Let the bridge that a root has wait a second for room on a full disk, and not a minute; its size stays."""
    for path in root.glob("bridge/*/_clusterfn/bridge/layout.py"):
        text = path.read_text()
        assert PATIENT in text
        for compiled in (path, *path.parent.glob("__pycache__/layout.*")):
            compiled.unlink()  # the roots of other tests have the file, too
        path.write_text(text.replace(PATIENT, IMPATIENT.ljust(len(PATIENT))))


@functools.cache
def _compiled_bridge() -> Path:
    """What the bridges of tests with other limits are copies of: a job need not compile all its modules again."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-bridge-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    layout_bridge(folder / "bridge")
    subprocess.run([sys.executable, "-m", "compileall", "-q", folder / "bridge"], check=True, env=clean_environ())
    return folder / "bridge"
