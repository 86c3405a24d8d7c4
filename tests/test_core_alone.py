"""The core stands alone: without gpu/, integrations/ and sweeps/ it is imported, and its calls return."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import BUILT_ON_THE_CORE, NAMES_ALL

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")

ROOT = Path(__file__).parents[1]
TAKEN = [name.partition(".")[2] for name in BUILT_ON_THE_CORE]
CALL = """
import importlib, pkgutil, sys
import clusterfn
from clusterfn import cluster

for each in pkgutil.walk_packages(clusterfn.__path__, "clusterfn."):
    if not each.name.startswith("clusterfn.bridge.") and each.name not in sys.argv[1:]:
        importlib.import_module(each.name)

@cluster(host="local")
def double(x):
    return 2 * x

if __name__ == "__main__":
    print(double(21), double.map([1, 2]).results())
"""


def copy_core(folder: Path) -> None:
    """Copy the library without what is built on the core."""
    taken = shutil.ignore_patterns("__pycache__", *TAKEN)
    shutil.copytree(ROOT / "clusterfn", folder / "clusterfn", ignore=taken)
    shutil.copytree(ROOT / "templates", folder / "clusterfn" / "templates")
    assert not [name for name in TAKEN if (folder / "clusterfn" / name).exists()]


def run_there(folder: Path, *argv: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder), "CLUSTERFN_CONFIG": str(folder / "clusterfn.yml")}
    command = [sys.executable, *argv]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout_s)


def test_its_modules_are_imported_and_its_calls_return(tmp_path: Path) -> None:
    copy_core(tmp_path)
    host = f"{{scheduler: local, root: {tmp_path}/root, limits: {{cores: 64}}}}"
    (tmp_path / "clusterfn.yml").write_text(f"hosts:\n  local: {host}\n")
    (tmp_path / "calls.py").write_text(CALL)
    others = ["clusterfn.__main__", *(f"clusterfn.{name[:-3].replace('/', '.')}" for name in NAMES_ALL)]

    ran = run_there(tmp_path, "calls.py", *others, timeout_s=150)

    assert ran.stdout == "42 [2, 4]\n", ran.stderr
