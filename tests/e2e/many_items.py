"""A map of many items in a process of its own: what it took, and what it left on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def measure(count: int, root: Path, env: Mapping[str, str] | None = None, host: str = "slurm") -> dict[str, Any]:
    """Map so many items, and count what it left on the host below that root."""
    argv = [sys.executable, str(Path(__file__).parents[1] / "fixtures" / "many_items.py"), str(count), host]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    folder = root / "jobs" / told.pop("id")
    told["elements that began"] = len(list((folder / "elements").iterdir()))
    told["files"] = sum(path.is_file() for path in folder.rglob("*"))
    return told
