"""The spec.json of a job that no client has sent, with what a host reads of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def job_spec(folder: Path, **facts: Any) -> dict[str, Any]:
    """Return the spec.json of the job in a folder `<root>/jobs/<id>`.

    Args:
        folder: The job's.
        facts: What it has besides, or instead.
    """
    resources = {"cores": 1, "memory_bytes": None, "gpus": 0, "time_s": None}
    return {
        "id": folder.name, "name": "train", "host": "box", "scheduler": "bare", "root": str(folder.parents[1]),
        "resources": resources, "keep_days": 14.0, **facts,
    }  # fmt: skip


def lay_job(root: Path, job: str = "7f3a" * 4, **facts: Any) -> Path:
    """Make the folder of a job that has not begun, with this in its spec.json besides, or instead."""
    folder = root / "jobs" / job
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(job_spec(folder, **facts)))
    return folder
