"""How the helpers ask about GPUs: what nvidia-smi may take, and what an installed PyTorch says before its import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clusterfn import ConfigError, gpu
from clusterfn.gpu import smi
from tests.waiting import until

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


@pytest.mark.parametrize("version, device", [("2.7.1+cpu", "cpu"), ("2.7.1+cu128", "cuda"), ("2.7.1", "cuda")])
def test_an_installed_pytorch_for_cpus_counts_before_it_is_imported(box, monkeypatch, version, device):
    monkeypatch.setattr("clusterfn.gpu.devices.installed_torch_version", lambda: version)

    hardware = gpu.detect_hardware()

    assert (hardware.device, hardware.torch, "torch" in sys.modules) == (device, version, False)
    if device == "cpu":
        assert hardware.why_cpu == f"PyTorch {version} is built without CUDA"
        with pytest.raises(ConfigError, match="does not meet the program"):
            gpu.validate_startup_configuration(gpus=1)
