"""The helpers of clusterfn.gpu in jobs, where nothing of clusterfn is installed."""

from __future__ import annotations

import sys

import pytest

from clusterfn import cluster

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("hosts", "gpubox_reset")]


def test_a_job_sees_the_gpus_that_it_was_given_and_helps_itself(lab):
    @cluster(host="tensor01", gpus=2)
    def look():
        from clusterfn import gpu

        with gpu.GpuMonitor(interval_s=0.1) as monitor, gpu.gpu_memory_context():
            hardware = gpu.validate_startup_configuration(gpus=2, vram_gb=40.0)
            with gpu.sync_model_context(lambda: ["weights"]) as model:
                size = gpu.get_recommended_batch_size(1.0, model_gb=4.0)
        uuids = [card.uuid for card in hardware.gpus.devices]
        return uuids, hardware.device, size, gpu.supports_fp8(), model, [str(each) for each in monitor.devices]

    uuids, device, size, fp8, model, seen = look()

    assert len(uuids) == 2 and set(uuids) <= {lab.gpubox.uuid(number) for number in range(8)}
    assert (device, size, fp8, model) == ("cuda", 32, False, ["weights"])
    assert [line[:23] for line in seen] == ["GPU 0: NVIDIA RTX A6000", "GPU 1: NVIDIA RTX A6000"]


def test_an_explained_error_comes_home_as_itself_with_its_explanation():
    @cluster(host="tensor01", gpus=1)
    def fail():
        from clusterfn import gpu

        with gpu.cuda_error_context("loading CLIP"):
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    job = fail.submit()
    with pytest.raises(RuntimeError, match="uncorrectable ECC error encountered") as caught:
        job.result(timeout=150)

    notes = "\n".join(caught.value.__notes__)
    assert "loading CLIP failed on " in notes and f"job {job.id}" in notes
    assert "[cudaErrorECCUncorrectable]; next: restart the job, on another GPU" in notes
    assert "loading CLIP failed on " in job.logs("stderr")


def test_without_gpus_asked_for_helpers_fall_back_and_requirements_do_not():
    @cluster(host="tensor01")
    def look():
        from clusterfn import ConfigError, gpu

        answers = gpu.get_safe_vram_usage(), gpu.detect_hardware().why_cpu, gpu.get_optimal_providers()
        try:
            gpu.validate_startup_configuration(gpus=1)
        except ConfigError as refused:
            return answers, refused.evidence
        return answers, ()

    (used, why, providers), refused = look()

    assert (used, providers) == (0.0, ["CPUExecutionProvider"])
    assert why.startswith("CUDA_VISIBLE_DEVICES hides all GPUs")
    assert refused[0].startswith("1 GPUs requested, 0 found")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lab's PyTorch is for Python 3.11")
def test_with_a_real_pytorch_that_lacks_cuda(lab):
    @cluster(host="tensor01", gpus=1, environment=f"python:{lab.torch_python}", allow_cpu=True)
    def look():
        import torch

        from clusterfn import gpu

        def fault_of(operation):
            try:
                operation()
            except Exception as error:
                return gpu.classify(error)

        with gpu.gpu_memory_context(), gpu.sync_model_context(lambda: torch.nn.Linear(2, 2), "cpu") as model:
            total = float(model(torch.ones(1, 2)).sum())
        hardware = gpu.detect_hardware()
        faults = [fault_of(lambda: torch.ones(1).cuda()), fault_of(lambda: torch.empty(1 << 60))]
        return hardware, total, [(each.kind, each.name) for each in faults], gpu.get_safe_vram_usage()

    hardware, total, faults, used = look()

    assert (hardware.device, hardware.gpus.available) == ("cpu", True)
    assert hardware.why_cpu == f"PyTorch {hardware.torch} is built without CUDA"
    assert isinstance(total, float)
    assert faults == [("cuda", "PyTorch without CUDA"), ("runtime", "RuntimeError")]
    assert used == pytest.approx(4 / 1024)
