"""What is asked about GPUs by the public helpers: without one, with broken drivers, by PyTorch."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
import types

import pytest

from clusterfn import ConfigError, gpu
from tests.fakes import torch as fake_torch

pytest_plugins = ["tests.fakes.gpu"]
pytestmark = pytest.mark.usefixtures("no_gpu")


def imported(monkeypatch, torch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_without_a_gpu_the_answers_are_the_documented_ones(logged):
    info = gpu.get_safe_gpu_info()

    assert (info.available, info.devices, info.total_gb, info.used_gb, info.free_gb) == (False, (), 0.0, 0.0, 0.0)
    assert info.trouble == "there is no nvidia-smi on this machine"
    assert gpu.get_safe_vram_usage() == 0.0
    levels = {record.levelname for record in logged.records}
    assert levels == {"DEBUG"}, "a machine without a card is nothing to warn of"


@pytest.mark.parametrize(
    "mode, said",
    [
        ("garbage", "nvidia-smi did not print a table of GPUs: "),
        ("nvml-mismatch", "exit code 18: Failed to initialize NVML: Driver/library version mismatch"),
        ("no-devices", "nvidia-smi: No devices were found"),
    ],
)
def test_a_broken_driver_is_reported_once_and_never_raised(box, logged, mode, said):
    box.set(mode)

    for _ in range(3):
        assert gpu.get_safe_vram_usage() == 0.0
        assert said in gpu.get_safe_gpu_info().trouble
    ours = [record.levelname for record in logged.records if record.name == "clusterfn.gpu"]
    assert ours == ["WARNING"]


def test_eight_gpus_are_read(box):
    with box.process(gpu=2, pid=os.getpid(), used_mib=20476, utilization=97):
        info = gpu.get_safe_gpu_info()

    assert len(info.devices) == 8
    card = info.devices[2]
    assert (card.index, card.name, card.capability, card.utilization) == (2, "NVIDIA RTX A6000", (8, 6), 97.0)
    assert (card.total_gb, card.used_gb) == (49140 / 1024, 20.0)
    assert card.free_gb == card.total_gb - 20.0
    assert (info.source, info.driver, info.trouble) == ("nvidia-smi", "575.57.08", "")


def test_usage_is_of_all_visible_gpus_or_of_one(box):
    with box.process(gpu=1, pid=1, used_mib=1020):
        assert gpu.get_safe_vram_usage() == pytest.approx((7 * 4 + 1024) / 1024)
        assert gpu.get_safe_vram_usage(1) == 1.0
        assert gpu.get_safe_vram_usage(99) == 0.0


@pytest.mark.parametrize("fields", [7, 8])
def test_a_driver_that_does_not_know_compute_cap_is_asked_without_it(box, fields):
    if fields == 7:
        program = next(box.path.parent.glob("bin/*"))
        program.write_text(program.read_text().replace('"compute_cap": card', '"compute_capability": card'))

    assert {card.capability for card in gpu.get_safe_gpu_info().devices} == ({(8, 6)} if fields == 8 else {None})
    assert len(gpu.get_safe_gpu_info().devices) == 8


def visible(box, value):
    return value.replace("UUID5", box.uuid(5)).replace("START5", box.uuid(5)[:10])


@pytest.mark.parametrize(
    "value, seen",
    [("", []), ("-1", []), ("NoDevFiles", []), ("3", [3]), ("6,1", [6, 1]), ("UUID5", [5]), ("START5,0", [5, 0]),
     ("2,99,3", [2]), ("99", [])],
)  # fmt: skip
def test_only_the_visible_gpus_count_in_the_order_that_cuda_gives_them(box, monkeypatch, value, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible(box, value))

    info = gpu.get_safe_gpu_info()

    assert [card.uuid for card in info.devices] == [box.uuid(number) for number in seen]
    assert [card.index for card in info.devices] == list(range(len(seen)))
    assert bool(info.trouble) == (not seen)


def test_pytorch_is_asked_where_the_process_uses_cuda_and_no_program_is_started(monkeypatch):
    torch = imported(monkeypatch, fake_torch.with_cuda([48.0, 24.0], [10.0, 0.0]))
    torch.cuda.own_gb[0] = 8.0
    torch.cuda.contexts.add(1)
    monkeypatch.setattr(subprocess, "Popen", None)

    info = gpu.get_safe_gpu_info()

    assert (info.source, gpu.get_safe_vram_usage(), info.free_gb) == ("torch", 10.0, 62.0)
    assert (info.devices[0].own_gb, info.devices[0].capability) == (8.0, (8, 6))


@pytest.mark.parametrize("used", [0, 5])
def test_asking_takes_no_memory_on_gpus_that_the_process_does_not_use(monkeypatch, used):
    torch = imported(monkeypatch, fake_torch.with_cuda([48.0] * 8, [1.0] * 8))
    torch.cuda.contexts = {used}
    if used == 0:
        del torch._C  # another PyTorch may have no such thing in its own parts

    gpu.get_safe_gpu_info()

    assert torch.cuda.contexts == {used}


def test_what_other_users_hold_of_a_gpu_is_seen_though_this_process_uses_another(box, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,1")
    torch = imported(monkeypatch, fake_torch.with_cuda([48.0, 48.0], [28.0, 47.0]))

    with box.process(gpu=1, pid=1, used_mib=40_000):
        assert [round(card.free_gb) for card in gpu.get_safe_gpu_info().devices] == [48, 9]
        assert gpu.validate_vram_usage(15.0).index == 0
        with pytest.raises(ConfigError) as caught:
            gpu.validate_startup_configuration(gpus=2, vram_gb=15.0)

    assert "15 GB free on each GPU requested, 8.9 GB on GPU 1" in caught.value.evidence
    assert torch.cuda.contexts == {0}


def test_a_gpu_of_which_nobody_can_tell_counts_as_full_and_is_said_to_be_unknown(monkeypatch):
    imported(monkeypatch, fake_torch.with_cuda([48.0, 48.0], [28.0, 0.0]))

    assert [card.used_gb for card in gpu.get_safe_gpu_info().devices] == [28.0, None]
    assert gpu.get_safe_vram_usage() == 28.0
    assert (gpu.get_recommended_batch_size(1.0), gpu.get_recommended_batch_size(1.0, gpu=0)) == (1, 16)
    assert gpu.validate_vram_usage(15.0).index == 0
    with pytest.raises(ConfigError) as caught:
        gpu.validate_vram_usage(15.0, gpu=1)
    assert caught.value.evidence[1] == "GPU 1: NVIDIA RTX A6000, 48 GB, free memory unknown"
    with pytest.raises(ConfigError) as caught:
        gpu.validate_startup_configuration(gpus=2, vram_gb=15.0)
    assert "15 GB free on each GPU requested, an unknown amount on GPU 1" in caught.value.evidence


def test_asking_never_makes_a_process_use_cuda(box, monkeypatch):
    torch = imported(monkeypatch, fake_torch.with_cuda(initialised=False))

    assert gpu.get_safe_gpu_info().source == "nvidia-smi"
    assert gpu.detect_hardware().device == "cuda"
    assert gpu.get_recommended_batch_size(1.0) > 1
    gpu.supports_fp8()
    gpu.get_optimal_providers()

    assert torch.cuda.asked == []


def test_where_pytorch_fails_nvidia_smi_answers(box, monkeypatch, logged):
    torch = imported(monkeypatch, fake_torch.with_cuda())
    torch.cuda.fails = RuntimeError("CUDA error: an illegal memory access was encountered")

    assert gpu.get_safe_gpu_info().source == "nvidia-smi"
    assert gpu.get_safe_vram_usage() > 0
    ours = [record.levelname for record in logged.records if record.name == "clusterfn.gpu"]
    assert ours == ["WARNING"]
    assert "cudaErrorIllegalAddress" in logged.text


def test_a_torch_that_is_half_imported_or_somebody_elses_is_no_torch(monkeypatch):
    imported(monkeypatch, types.ModuleType("torch"))

    assert gpu.get_safe_vram_usage() == 0.0
    assert gpu.detect_hardware().device == "cpu"


@pytest.mark.parametrize("allow", [False, True])
def test_a_gpu_that_is_asked_for_is_never_replaced_by_the_cpu_unless_that_is_allowed(logged, allow):
    if not allow:
        with pytest.raises(ConfigError) as caught:
            gpu.validate_startup_configuration(gpus=1)
        assert "1 GPUs requested, 0 found: there is no nvidia-smi on this machine" in caught.value.evidence
        return
    assert gpu.validate_startup_configuration(gpus=1, allow_cpu=True).device == "cpu"
    assert "running on the CPU because allow_cpu=True: 1 GPUs requested" in logged.text


def test_hardware_says_why_it_is_the_cpu(box, monkeypatch):
    imported(monkeypatch, fake_torch.without_cuda())
    assert gpu.detect_hardware().why_cpu == "PyTorch 2.7.1+cpu is built without CUDA"

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.detect_hardware().why_cpu.startswith("CUDA_VISIBLE_DEVICES hides all GPUs")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    box.set("nvml-mismatch")
    assert "version mismatch" in gpu.detect_hardware().why_cpu


def test_a_pytorch_for_amd_does_not_lack_its_gpus(box, monkeypatch):
    imported(monkeypatch, fake_torch.without_cuda()).version.hip = "6.1"

    assert gpu.detect_hardware().device == "cuda"


@pytest.mark.parametrize(
    "item_gb, model_gb, expected",
    [(1.0, 0.0, 32), (1.0, 12.0, 16), (0.001, 0.0, 1024), (100.0, 0.0, 4), (1.0, 500.0, 4), (43.2, 0.0, 4)],
)
def test_the_batch_is_a_power_of_two_that_fits_the_fullest_gpu(monkeypatch, item_gb, model_gb, expected):
    torch = imported(monkeypatch, fake_torch.with_cuda([48.0, 48.0], [0.0, 0.0]))  # 48 GB less a tenth: 43.2
    torch.cuda.contexts.add(1)

    assert gpu.get_recommended_batch_size(item_gb, model_gb, least=4) == expected


def test_the_batch_fits_the_gpu_with_least_free_memory(monkeypatch):
    torch = imported(monkeypatch, fake_torch.with_cuda([48.0, 48.0], [0.0, 40.0]))
    torch.cuda.contexts.add(1)

    assert gpu.get_recommended_batch_size(1.0) == 4  # 8 GB less a tenth
    assert gpu.get_recommended_batch_size(1.0, gpu=0) == 32


@pytest.mark.parametrize("wrong", [{"item_gb": 0}, {"item_gb": 1, "least": 0}, {"item_gb": 1, "least": 9, "most": 8}])
def test_a_batch_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError):
        gpu.get_recommended_batch_size(**wrong)


def onnxruntime(monkeypatch, *providers):
    module = types.ModuleType("onnxruntime")
    module.__spec__ = importlib.machinery.ModuleSpec("onnxruntime", None)
    module.get_available_providers = lambda: list(providers)
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    return module


EVERY = ("CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider")


def test_providers_are_ordered_and_only_those_that_can_work(box, monkeypatch):
    assert gpu.get_optimal_providers() == ["CPUExecutionProvider"]  # there is no onnxruntime

    onnxruntime(monkeypatch, *EVERY)
    assert gpu.get_optimal_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]  # nor TensorRT's libraries

    libraries = types.ModuleType("tensorrt_libs")
    libraries.__spec__ = importlib.machinery.ModuleSpec("tensorrt_libs", None)
    monkeypatch.setitem(sys.modules, "tensorrt_libs", libraries)
    assert gpu.get_optimal_providers() == list(reversed(EVERY))


def test_a_broken_onnxruntime_is_none(box, monkeypatch, logged):
    def fail():
        raise OSError("libcublasLt.so.12: cannot open shared object file")

    onnxruntime(monkeypatch).get_available_providers = fail

    assert gpu.get_optimal_providers() == ["CPUExecutionProvider"]
    assert "asking ONNX Runtime for its providers failed" in logged.text


@pytest.mark.parametrize(
    "capability, can", [("8.6", False), ("8.9", True), ("9.0", True), ("12.0", True), ("[N/A]", False)]
)
def test_fp8_by_compute_capability(box, capability, can):
    state = box.read()
    for card in state["cards"]:
        card["compute_cap"] = capability
    box.write(state)

    assert gpu.supports_fp8() is can
    assert gpu.supports_fp8(gpu=7) is can


def test_fp8_needs_every_gpu_and_a_gpu(box, monkeypatch):
    state = box.read()
    state["cards"][0]["compute_cap"] = "9.0"
    box.write(state)
    assert (gpu.supports_fp8(), gpu.supports_fp8(gpu=0)) == (False, True)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.supports_fp8() is False


def test_startup_says_every_problem_at_once(box):
    with box.cards(2), box.process(gpu=1, pid=1, used_mib=40000), pytest.raises(ConfigError) as caught:
        gpu.validate_startup_configuration(
            gpus=2, vram_gb=20.0, fp8=True, providers=["CUDAExecutionProvider"], memory_gb=1e6, cores=9999
        )

    told = "\n".join(caught.value.evidence)
    for line in (
        "20 GB free on each GPU requested, 8.9 GB on GPU 1",
        "FP8 requested, but GPU 0 (NVIDIA RTX A6000) does not support it",
        "ONNX Runtime has no working CUDAExecutionProvider",
        "976.6 TB of memory requested",
        "9999 cores requested",
        "GPU 0: NVIDIA RTX A6000, 48 GB of 48 GB free",
    ):
        assert line in told, told


def test_vram_means_a_gpu_and_only_as_many_gpus_as_asked_for_count(box):
    assert len(gpu.validate_startup_configuration(gpus=8, vram_gb=40.0, cores=1).gpus.devices) == 8
    with box.process(gpu=0, pid=1, used_mib=40000):
        assert gpu.validate_startup_configuration(gpus=7, vram_gb=40.0)
    with box.cards(0), pytest.raises(ConfigError):
        gpu.validate_startup_configuration(vram_gb=1.0)


def test_the_gpu_with_most_free_memory_takes_the_model(box):
    with box.process(gpu=0, pid=1, used_mib=30000), box.cards(2):
        assert gpu.validate_vram_usage(1.8).index == 1
        assert gpu.validate_vram_usage(1.8, gpu=0).index == 0
        with pytest.raises(ConfigError, match="30 GB of GPU memory is needed, but GPU 0 does not have") as caught:
            gpu.validate_vram_usage(30.0, gpu=0)

    assert caught.value.evidence[0] == "GPU 0: NVIDIA RTX A6000, 18.7 GB of 48 GB free"


@pytest.mark.parametrize("wrong", [{"gpus": -1}, {"vram_gb": -1.0}, {"cores": -1}, {"memory_gb": float("nan")}])
def test_less_than_nothing_cannot_be_asked_for(box, wrong):
    with pytest.raises(ConfigError, match="is not a number of at least 0"):
        gpu.validate_startup_configuration(**wrong)
    with pytest.raises(ConfigError, match="is not a number of at least 0"):
        gpu.validate_vram_usage(-0.1)
