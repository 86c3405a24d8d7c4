"""Whether a job has used its GPUs and whether PyTorch can, with files and a program in the place of a driver's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.supervisor import built
from clusterfn.bridge.supervisor.verdict import AttemptEnded

OPENS = """
import subprocess, sys
from clusterfn.bridge.worker import devices
devices._NVIDIA, child = sys.argv[1], sys.argv[2]
watch, opened = devices.TorchWatch({"gpus": 1}, print), [open(name) for name in sys.argv[3:]]
if child == "before":
    subprocess.run([sys.executable, "-c", ""])
watch.begin()
if child == "meanwhile":
    subprocess.run(["true"])
running = subprocess.Popen(["cat"], stdin=subprocess.PIPE) if child == "running" else None
watch.finish(None)
if running:
    running.communicate()
"""


def test_a_job_whose_processes_opened_no_gpu_is_reported(tmp_path: Path):
    """With files in the place of the driver's. A child that ended before the function began is none of the job."""
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / name).touch()

    def said(child: str = "", *opened: str) -> str:
        argv = [sys.executable, "-c", OPENS, str(tmp_path / "nvidia"), child, *opened]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    for child in ("", "before"):
        assert said(child).startswith("this job asked for 1 GPU and no process opened one")
    for child in ("meanwhile", "running"):
        assert said(child) == ""
    assert said("", str(tmp_path / "nvidia0")) == ""
    (tmp_path / "nvidiactl").unlink()
    assert said() == ""


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
