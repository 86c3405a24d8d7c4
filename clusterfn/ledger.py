"""A small file of this user's own that remembers on which host a job was started from here.

A convenience for `attach`: the hosts know their jobs without it. Called by `dispatch` and `lookup`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterfn.job import Job


def remember(job: Job[Any]) -> None:
    """Note on which host a job is."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": job.id, "host": job.host, "name": job.name, "at": int(time.time())}) + "\n")


def hosts_of(job_id: str) -> list[str]:
    """Names of hosts on which jobs whose id begins so were started from here."""
    try:
        lines = _path().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return sorted({json.loads(line)["host"] for line in lines if f'"id": "{job_id}' in line})


def _path() -> Path:
    base = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "clusterfn" / "jobs.jsonl"
