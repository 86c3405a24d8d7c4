"""Lays out the bridge as on a host, but for limits that a busy machine would reach. No test in here."""

from __future__ import annotations

import atexit
import functools
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processes import named
from tests.waiting import until

if TYPE_CHECKING:
    from tests.bridge.host import Bench


def layout_bridge(target: Path, *changes: tuple[str, str, str]) -> Path:
    """The tree of bridge/<hash>, as a call of this checkout has sent it, but `UNHURRIED`.

    Args:
        changes: A module, how a line in it begins, and what is there instead: another limit.
    """
    shutil.copytree(_sent_bridge(), target)
    _change(target, *changes)
    return target


# For how long processes wait for one another, or may be kept from a CPU: on a busy machine a few seconds are soon over.
UNHURRIED = (
    ("queue/launch.py", "_DIES_S = 2.0", "_DIES_S = 100.0"),
    ("queue/lease.py", "_LOCK_S = 2.0", "_LOCK_S = 100.0"),
    ("schedulers/slurm.py", "_SHOW_JOB_S = 5", "_SHOW_JOB_S = 100"),
    ("supervisor/conclude.py", "_DIES_S = 3.0", "_DIES_S = 100.0"),
    ("supervisor/keeper.py", "_ANSWER_S = 3.0", "_ANSWER_S = 100.0"),
    ("supervisor/keeper.py", "_START_S = 1.0", "_START_S = 100.0"),
    ("supervisor/limits.py", "_BUSY_S = 2.0", "_BUSY_S = 100.0"),
)


def _change(bridge: Path, *changes: tuple[str, str, str]) -> None:
    for module, before, after in changes:
        path = bridge / "_clusterfn" / "bridge" / module
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        text, count = re.subn(rf"(?m)^{re.escape(before)}(?=\s)", after, path.read_text(encoding="utf-8"))
        assert count == 1, f"{module}: {before}"
        path.write_text(text, encoding="utf-8")
        py_compile.compile(str(path))


def warn_when(bench: Bench, ready: str) -> None:
    """Let supervisors warn a function whose time is almost up when this is true of it: not as soon as it runs."""
    warns = "        why = self.watch.warning() if worker is not None"
    change = ("supervisor/run.py", warns, f"{warns} and {ready}")
    bench.bridge = layout_bridge(bench.root.parent / "warns", change)


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
def _sent_bridge() -> Path:
    """What a call has laid out below a root of this machine: its modules are compiled, as they are from then on."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-bridge-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "clusterfn.yml").write_text(f"hosts:\n  here: {{scheduler: local, root: {folder / 'root'}}}\n")
    env = {**os.environ, "CLUSTERFN_CONFIG": str(folder / "clusterfn.yml"), "XDG_STATE_HOME": str(folder)}
    subprocess.run([sys.executable, "-c", "import clusterfn\nclusterfn.cluster(abs)(-1)"], env=env, check=True)
    (bridge,) = (folder / "root" / "bridge").iterdir()
    until(lambda: not named(folder), "the last supervisor may still compile modules")
    _change(bridge, *UNHURRIED)
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", bridge], check=True)  # some tests run it as other users
    return bridge
