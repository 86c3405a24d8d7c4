"""`clusterfn demo`: runs templates/demo.py on this machine, as a user's own script, and leaves nothing behind."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from clusterfn.scheduler.job_script import read_template

_CONFIG = """\
# Written by `clusterfn demo`: one host, which is this machine.
hosts:
  local:
    scheduler: local
    root: {root}
"""
_PATIENCE_S = 115.0


def demo(given: argparse.Namespace) -> int:
    """Run the demo in a temporary folder; 0 if everything was as expected."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-demo-"))
    try:
        return _run(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path) -> int:
    script = folder / "demo.py"
    script.write_text(read_template("demo.py"), encoding="utf-8")
    config = folder / "clusterfn.yml"
    config.write_text(_CONFIG.format(root=folder / "root"), encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERFN_")}
    env.update(CLUSTERFN_CONFIG=str(config), XDG_STATE_HOME=str(folder / "state"), PYTHONUNBUFFERED="1")
    try:
        return subprocess.run([sys.executable, script.name], cwd=folder, env=env, timeout=_PATIENCE_S).returncode
    except subprocess.TimeoutExpired:
        print(f"clusterfn: the demo was ended after {_PATIENCE_S:.0f} s", file=sys.stderr)
        return 1
