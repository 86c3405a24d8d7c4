"""What this machine is, what fits on it, and whether it is what the program was written for.

`detect_hardware` and what builds on it answer always, without a GPU too; `validate_startup_configuration` is for what
is asked for, and raises. Nothing here makes the process use CUDA.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.errors import ConfigError
from clusterfn.gpu import devices
from clusterfn.gpu.devices import GpuInfo, describe, get_safe_gpu_info, reject_below
from clusterfn.gpu.guards import probe, say_once

_GB = float(1 << 30)
# A part of the free memory is left for CUDA itself and for the gaps between blocks.
_KEPT_FREE = 0.1
# "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9": PyTorch,
# aten/src/ATen/native/cuda/Blas.cpp; https://nvidia.github.io/TransformerEngine/support_matrix.html says the same
_FP8_SINCE = (8, 9)
# The fastest first, as ONNX Runtime tries them in the order given: https://onnxruntime.ai/docs/execution-providers/
_ON_GPU = ("TensorrtExecutionProvider", "CUDAExecutionProvider")
_ELSEWHERE = ("MIGraphXExecutionProvider", "ROCMExecutionProvider", "CoreMLExecutionProvider", "DmlExecutionProvider")
_CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Hardware:
    """What this process can use.

    Attributes:
        device: What to write in `tensor.to(...)`: "cuda" or "cpu".
        gpus: The GPUs.
        why_cpu: Why `device` is not "cuda", in words; "" if it is.
        torch: The installed PyTorch's version; "" if there is none.
        cores: Processor cores that this process may use.
        memory_gb: The machine's memory; 0.0 if unknown.
    """

    device: str
    gpus: GpuInfo
    why_cpu: str
    torch: str
    cores: int
    memory_gb: float


def detect_hardware() -> Hardware:
    """Return what this process can use; the CPU, and why, where GPUs or PyTorch's CUDA are missing.

    Example:
        >>> hardware = detect_hardware()
        >>> hardware.device in ("cuda", "cpu") and hardware.cores >= 1
        True
    """
    gpus = get_safe_gpu_info()
    why = gpus.trouble
    if gpus.devices:
        without_cuda = probe(devices.torch_lacks_cuda, "asking PyTorch for its CUDA", "")
        why = f"PyTorch {without_cuda} is built without CUDA" if without_cuda else ""
    torch = devices.loaded_torch()
    if torch is None:
        version = probe(devices.installed_torch_version, "looking for PyTorch", "")
    else:
        version = str(torch.__version__)
    device = "cpu" if why or not gpus.devices else "cuda"
    cores, memory_gb = probe(_cores, "counting cores", 1), probe(_memory_gb, "measuring memory", 0.0)
    return Hardware(device, gpus, why, version, cores, memory_gb)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gb() -> float:
    # Windows has no sysconf.
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / _GB if hasattr(os, "sysconf") else 0.0


def get_recommended_batch_size(
    item_gb: float, model_gb: float = 0.0, *, least: int = 1, most: int = 1024, gpu: int | None = None
) -> int:
    """Return the largest power of two of items that fits on each visible GPU; a tenth of the free memory stays free.

    A GPU whose free memory is unknown counts as full.

    Args:
        item_gb: GB that one item of a batch takes at the peak (measure two sizes and divide the difference).
        model_gb: GB that will also be loaded, in addition to the batch.
        least: What to answer where less fits, or there is no GPU.
        most: No more than this.
        gpu: Only this GPU counts; by default the one with least free memory.

    Raises:
        ConfigError: A size that is not positive, or `least` above `most`.

    Example:
        >>> get_recommended_batch_size(0.5, model_gb=6.0, least=4) >= 4
        True
    """
    reject_below(0, item_gb=item_gb, model_gb=model_gb)
    if item_gb == 0 or not 1 <= least <= most:
        raise ConfigError("a batch needs item_gb > 0 and 1 <= least <= most")
    devices = [device for device in get_safe_gpu_info().devices if gpu is None or device.index == gpu]
    free = min((device.free_gb for device in devices), default=0.0) * (1 - _KEPT_FREE) - model_gb
    fitting = int(free / item_gb)
    power = 1 << (fitting.bit_length() - 1) if fitting >= 1 else 0
    return max(least, min(most, power))


def supports_fp8(gpu: int | None = None) -> bool:
    """Return whether every visible GPU multiplies in FP8 (compute capability 8.9 and newer); False without a GPU.

    Args:
        gpu: Only this one.

    Example:
        >>> supports_fp8() in (True, False)
        True
    """
    devices = [device for device in get_safe_gpu_info().devices if gpu is None or device.index == gpu]
    capabilities = [device.capability for device in devices]
    return bool(devices) and all(found is not None and found >= _FP8_SINCE for found in capabilities)


def get_optimal_providers() -> list[str]:
    """List ONNX Runtime's execution providers that can work here, the fastest first; the CPU's is always the last.

    TensorRT's is left out unless its libraries are there: ONNX Runtime offers it all the same, and falls back to the
    CPU. Without onnxruntime, or without a GPU, what is left is the CPU's.

    Example:
        >>> get_optimal_providers()[-1]
        'CPUExecutionProvider'
    """
    offered: list[str] = probe(_offered, "asking ONNX Runtime for its providers", [])
    devices = get_safe_gpu_info().available
    tensorrt = any(importlib.util.find_spec(name) is not None for name in ("tensorrt_libs", "tensorrt"))
    suitable = [name for name in _ON_GPU if devices and (tensorrt or name != _ON_GPU[0])] + list(_ELSEWHERE)
    return [*(name for name in suitable if name in offered), _CPU]


def _offered() -> list[str]:
    if importlib.util.find_spec("onnxruntime") is None:
        return []
    return list(importlib.import_module("onnxruntime").get_available_providers())


def validate_startup_configuration(
    *,
    gpus: int = 0,
    vram_gb: float = 0.0,
    fp8: bool = False,
    providers: Sequence[str] = (),
    memory_gb: float = 0.0,
    cores: int = 0,
    allow_cpu: bool = False,
) -> Hardware:
    """Check, before anything is loaded, that the machine is what the program needs; report every problem at once.

    Args:
        gpus: GPUs that must be there.
        vram_gb: GB that must be free on each of them.
        fp8: Whether they must multiply in FP8.
        providers: ONNX Runtime's providers that must work.
        memory_gb: The machine's memory, at least.
        cores: Processor cores, at least.
        allow_cpu: What is wrong with the GPUs is only warned of, and the answer's `device` says "cpu".

    Returns:
        What there is.

    Raises:
        ConfigError: Something is missing; `evidence` has a line for each. Or a number is negative.

    Example:
        >>> hardware = validate_startup_configuration(cores=1)
        >>> hardware = validate_startup_configuration(gpus=1, vram_gb=17.0, fp8=True)    # doctest: +SKIP
    """
    reject_below(0, gpus=gpus, vram_gb=vram_gb, memory_gb=memory_gb, cores=cores)
    hardware = detect_hardware()
    lacking = list(_missing_gpus(hardware, gpus, vram_gb, fp8))
    wrong = [] if allow_cpu else list(lacking)
    missing = [name for name in providers if name not in get_optimal_providers()]
    wrong += [f"ONNX Runtime has no working {name}" for name in missing]
    if memory_gb > hardware.memory_gb:
        wrong += [f"{format_size(memory_gb * _GB)} of memory requested, {format_size(hardware.memory_gb * _GB)} found"]
    wrong += [f"{cores} cores requested, {hardware.cores} found"] * (cores > hardware.cores)
    if wrong:
        evidence = [*wrong, *describe(hardware.gpus)]
        hint = "request it with @cluster(gpus=..., cores=..., memory=...), or lower the requirements"
        raise ConfigError("this machine does not meet the program's requirements", evidence=evidence, hint=hint)
    if not lacking:
        return hardware
    say_once(logging.WARNING, f"running on the CPU because allow_cpu=True: {'; '.join(lacking)}")
    return replace(hardware, device="cpu", why_cpu="; ".join(lacking))


def _missing_gpus(hardware: Hardware, gpus: int, vram_gb: float, fp8: bool) -> Iterator[str]:
    count = gpus or int(bool(vram_gb or fp8))
    devices = hardware.gpus.devices
    if len(devices) < count:
        yield f"{count} GPUs requested, {len(devices)} found" + (f": {hardware.gpus.trouble}" if not devices else "")
    elif count and hardware.why_cpu:
        yield hardware.why_cpu
    for gpu in sorted(devices, key=lambda device: -device.free_gb)[:count]:
        if gpu.free_gb < vram_gb:
            free = "an unknown amount" if gpu.used_gb is None else format_size(gpu.free_gb * _GB)
            yield f"{format_size(vram_gb * _GB)} free on each GPU requested, {free} on GPU {gpu.index}"
        if fp8 and not supports_fp8(gpu.index):
            yield f"FP8 requested, but GPU {gpu.index} ({gpu.name}) does not support it"
