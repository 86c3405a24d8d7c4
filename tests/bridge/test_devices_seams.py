"""Whether a job has used its GPUs and whether PyTorch can, with files and a program in the place of a driver's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.supervisor import built
from clusterfn.bridge.supervisor.verdict import AttemptEnded


def test_a_torch_that_cannot_be_imported_is_not_blamed_on_the_gpus(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without site-packages
    python.chmod(0o755)
    building = {"root": str(tmp_path), "id": "7f3a", "cuda": "11.8"}
    job: Any = SimpleNamespace(
        node="n1", spec={"python": str(python), "building": building}, scheduler=SimpleNamespace(partition=lambda: "")
    )

    with pytest.raises(AttemptEnded) as caught:
        built.check_torch(job, os.environ)

    verdict = caught.value.verdict
    problem = "ModuleNotFoundError: No module named 'torch'"
    assert verdict.message == f"PyTorch cannot be imported on n1: {problem}"
    assert verdict.stage == "environment"
