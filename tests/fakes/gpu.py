"""Machines for the tests of clusterfn.gpu, as fixtures: without a card, or with eight and any of the driver's faults.

A test module names this one in `pytest_plugins`.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterfn.gpu import guards, smi
from tests.programs import python_program

if TYPE_CHECKING:
    from tests.lab.gpubox import GpuBox


@pytest.fixture
def no_gpu(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a card, a driver and PyTorch; nothing remembered of the test before."""
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("clusterfn.gpu.devices.installed_torch_version", lambda: "")
    guards.say_once.cache_clear()
    smi.hung_at.clear()


@pytest.fixture
def box(no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuBox:
    """Eight RTX A6000 that the lab's nvidia-smi, first in PATH, tells of; its modes are the driver's faults."""
    if sys.platform == "win32":
        pytest.skip("the played nvidia-smi is a script")
    from tests.lab import nvidia_smi
    from tests.lab.gpubox import GpuBox

    found = GpuBox(tmp_path / "state.json")
    found.reset()
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    source = Path(nvidia_smi.__file__).read_text().replace(nvidia_smi.STATE, str(found.path))
    python_program(program, source, "-IS")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(smi, "PATIENCE_S", 60.0)  # a busy machine starts even this one slowly
    return found


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, from DEBUG on."""
    caplog.set_level(logging.DEBUG, "clusterfn.gpu")
    return caplog
