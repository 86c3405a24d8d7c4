"""Hosts of a file."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def two_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "clusterfn.yml"
    path.write_text("hosts:\n  tensor01: {scheduler: bare}\n  cluster: {scheduler: slurm}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    monkeypatch.delenv("CLUSTERFN_HOST", raising=False)
    return path
