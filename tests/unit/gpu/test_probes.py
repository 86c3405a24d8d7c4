"""How the helpers ask about GPUs: what nvidia-smi may take, and what an installed PyTorch says before its import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clusterfn import ConfigError, gpu
from clusterfn.gpu import devices, smi
from tests.waiting import until

VERSION_FILE = devices.find_torch_version_file  # the fixtures replace it

pytest_plugins = ["tests.fakes.gpu"]
pytestmark = pytest.mark.usefixtures("no_gpu")


def test_a_driver_that_hangs_costs_its_patience_once(box, monkeypatch, logged):
    box.set("hang")
    monkeypatch.setattr(smi, "PATIENCE_S", 0.3)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **kwargs: started.append(popen(*args, **kwargs)) or started[-1]
    )

    assert gpu.get_safe_vram_usage() == 0.0
    assert gpu.get_safe_vram_usage() == 0.0

    assert len(started) == 1
    until(lambda: started[0].poll() is not None)  # it was ended
    assert "did not answer within" in logged.text


def test_a_driver_that_answers_again_is_believed_again(box, monkeypatch):
    smi.hung_at[:] = [-1000.0]

    assert gpu.get_safe_gpu_info().available


CPU_BUILD = (
    "from typing import Optional\n__version__ = '2.7.1'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
)
CUDA_BUILD = CPU_BUILD.replace("cuda: Optional[str] = None", "cuda: Optional[str] = '12.8'")


@pytest.mark.parametrize(
    "version, text, device",
    [
        ("2.7.1+cpu", None, "cpu"),
        ("2.7.1+cu128", None, "cuda"),
        ("2.7.1", None, "cuda"),
        ("2.7.1", CPU_BUILD, "cpu"),
        ("2.7.1", CUDA_BUILD, "cuda"),
        ("2.7.1", "cuda = '11.8'\n", "cuda"),
        ("2.7.1", "cuda = None  # hip = '6.1'\n", "cpu"),
        ("2.7.1", "cuda = None\nhip = '6.1'\n", "cuda"),
        ("2.7.1", "__version__ = '2.7.1'\n", "cuda"),
        ("2.7.1+cpu", "__version__ = '2.7.1'\n", "cpu"),
        ("", CPU_BUILD, "cpu"),
    ],
)
def test_an_installed_pytorch_for_cpus_counts_before_it_is_imported(box, monkeypatch, tmp_path, version, text, device):
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('asking imports it')")
    if text is not None:
        (package / "version.py").write_text(text)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr("clusterfn.gpu.devices.installed_torch_version", lambda: version)
    monkeypatch.setattr("clusterfn.gpu.devices.find_torch_version_file", VERSION_FILE)

    hardware = gpu.detect_hardware()

    assert (hardware.device, hardware.torch, "torch" in sys.modules) == (device, version, False)
    if device == "cpu":
        assert hardware.why_cpu == f"PyTorch {version or 'of unknown version'} is built without CUDA"
        with pytest.raises(ConfigError, match="does not meet the program"):
            gpu.validate_startup_configuration(gpus=1)
