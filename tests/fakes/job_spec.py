"""The spec.json of a job that no client has sent, with what a host reads of each."""

from __future__ import annotations

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
