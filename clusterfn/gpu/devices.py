"""The GPUs that this process may see, and their memory. Asking never raises, and never makes the process use CUDA.

If the process already uses CUDA through PyTorch, it asks PyTorch, which takes microseconds. nvidia-smi, which takes
some ten milliseconds, is asked if there are GPUs that the process does not use. Where neither answers there are no
GPUs, and `trouble` says why. GB are 2³⁰ bytes, as everywhere in clusterfn.

Nothing here imports PyTorch or makes it use CUDA. That would take seconds, fix the visible GPUs, and take some hundred
megabytes on each. It would also forbid every later fork (https://github.com/pytorch/pytorch/pull/85951).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.errors import ConfigError
from clusterfn.gpu import smi
from clusterfn.gpu.guards import probe, say_once
from clusterfn.gpu.smi import Gpu


@dataclass(frozen=True)
class GpuInfo:
    """What is known of the GPUs.

    Attributes:
        devices: Those that the process may see; empty without a GPU.
        source: Who said so: "torch", "nvidia-smi" or "".
        driver: Its version; "" if unknown.
        trouble: Why there are no GPUs here, in words; "" if there are.
    """

    devices: tuple[Gpu, ...] = ()
    source: str = ""
    driver: str = ""
    trouble: str = ""

    @property
    def available(self) -> bool:
        """Whether there is a GPU."""
        return bool(self.devices)

    @property
    def total_gb(self) -> float:
        """Memory of all GPUs, as far as it is known."""
        return sum((gpu.total_gb or 0.0 for gpu in self.devices), 0.0)

    @property
    def used_gb(self) -> float:
        """Memory in use on all GPUs, by any process, as far as it is known."""
        return sum((gpu.used_gb or 0.0 for gpu in self.devices), 0.0)

    @property
    def free_gb(self) -> float:
        """Memory that no process uses on all GPUs, as far as it is known."""
        return sum((gpu.free_gb for gpu in self.devices), 0.0)


def get_safe_gpu_info() -> GpuInfo:
    """Return the GPUs that this process may see; no GPUs, and why, where there is no GPU or its driver fails.

    Example:
        >>> info = get_safe_gpu_info()
        >>> info.available or bool(info.trouble)
        True
    """
    own = probe(by_torch, "asking PyTorch for its GPUs", GpuInfo())
    if own.devices and all(gpu.used_gb is not None for gpu in own.devices):
        return own
    found = by_nvidia_smi()
    return found if found.devices or not own.devices else own


def get_safe_vram_usage(gpu: int | None = None) -> float:
    """Return the GB in use on the visible GPUs, by any process; 0.0 where nothing can be known.

    Args:
        gpu: Only this one, as the process counts them; all of them together by default.

    Example:
        >>> get_safe_vram_usage() >= 0.0
        True
    """
    devices = get_safe_gpu_info().devices
    return sum((device.used_gb or 0.0 for device in devices if gpu is None or device.index == gpu), 0.0)


def validate_vram_usage(needed_gb: float, gpu: int | None = None) -> Gpu:
    """Return a GPU on which so much memory is free, before something large is loaded.

    Args:
        needed_gb: GB that must be free on one GPU.
        gpu: The GPU that must fit; by default any, the one with most free memory first.

    Raises:
        ConfigError: No GPU is known to have so much free memory; the evidence lists what each has. Or `needed_gb` is
            negative.

    Example:
        >>> clip_gb = 428e6 * 2 / 2**30                  # parameters of ViT-L/14, two bytes each
        >>> gpu = validate_vram_usage(clip_gb + 1.0)    # doctest: +SKIP
    """
    reject_below(0, needed_gb=needed_gb)
    info = get_safe_gpu_info()
    devices = [device for device in info.devices if gpu is None or device.index == gpu]
    fitting = [device for device in devices if device.free_gb >= needed_gb]
    if not fitting:
        where = "no GPU has" if gpu is None else f"GPU {gpu} does not have"
        problem = f"{format_size(needed_gb * 2**30)} of GPU memory is needed, but {where} that much free"
        hint = "request a larger GPU, load less, or free memory in this process"
        raise ConfigError(problem, evidence=list(describe(info)), hint=hint)
    return max(fitting, key=lambda device: device.free_gb)


def reject_below(least: float, **numbers: float) -> None:
    """Reject what is less than that or no number, by its name."""
    for name, number in numbers.items():
        if not (isinstance(number, Real) and number >= least):
            raise ConfigError(f"{name}={number!r} is not a number of at least {least}", hint=f"give {least} or more")


def describe(info: GpuInfo) -> Iterator[str]:
    """Describe each GPU in a line; say why there are none."""
    for gpu in info.devices:
        total = "memory unknown" if gpu.total_gb is None else format_size(gpu.total_gb * 2**30)
        unknown = gpu.used_gb is None or gpu.total_gb is None
        memory = f"{total}, free memory unknown" if unknown else f"{format_size(gpu.free_gb * 2**30)} of {total} free"
        yield f"GPU {gpu.index}: {gpu.name}, {memory}{', shared with the CPU' if gpu.unified else ''}"
    if info.trouble or not info.devices:
        yield info.trouble or "no GPU is visible"


def by_nvidia_smi() -> GpuInfo:
    """Ask nvidia-smi for the GPUs that this process may see; `trouble` says why there are none."""
    try:
        gpus, driver = smi.visible_gpus()
    except smi.SmiFailed as failed:
        say_once(logging.DEBUG if failed.usual else logging.WARNING, f"no GPU is visible: {failed}")
        return GpuInfo(trouble=str(failed))
    trouble = "" if gpus else "CUDA_VISIBLE_DEVICES names no GPU of this machine"
    return GpuInfo(tuple(gpus), "nvidia-smi", driver if gpus else "", trouble)


def by_torch() -> GpuInfo:
    """Ask the PyTorch of this process; no GPUs if it does not use CUDA. May raise anything that PyTorch raises."""
    torch = torch_with_cuda()
    if torch is None:
        return GpuInfo(trouble="this process does not use CUDA through PyTorch")
    devices = [_device(torch, number) for number in range(torch.cuda.device_count())]
    return GpuInfo(tuple(devices), "torch")


def _device(torch: Any, number: int) -> Gpu:
    properties = torch.cuda.get_device_properties(number)
    free, total = _memory_gb(torch, number)
    used = None if free is None else total - free
    own, _ = own_gb(torch, number)
    # PyTorch 2.3 and older versions do not report the UUID.
    uuid = str(getattr(properties, "uuid", ""))
    uuid = f"GPU-{uuid.removeprefix('GPU-')}" if uuid else ""
    return Gpu(number, properties.name, total, used, own, None, (properties.major, properties.minor), uuid)


_GB = float(1 << 30)
_KINDS_OF_GPUS = ("cuda", "hip")


def loaded_torch() -> Any:
    """Return PyTorch if it has been imported; else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "cuda") else None


def torch_with_cuda() -> Any:
    """Return PyTorch if this process has used CUDA by it; else None."""
    torch = loaded_torch()
    return torch if torch is not None and torch.cuda.is_initialized() else None


def torch_lacks_cuda() -> str:
    """Return the version of a PyTorch that is known to lack CUDA, loaded or only installed; "" otherwise."""
    torch = loaded_torch()
    if torch is not None:
        return "" if any(getattr(torch.version, name, None) for name in _KINDS_OF_GPUS) else str(torch.__version__)
    version = installed_torch_version()
    return version if version.endswith("+cpu") else ""


def installed_torch_version() -> str:
    """Return the version of the PyTorch that could be imported, without importing it; "" if there is none."""
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _memory_gb(torch: Any, device: int) -> tuple[float | None, float]:
    """Return free and total GB of a GPU; None for the free ones without a CUDA context there: asking would make one."""
    has_primary_context = getattr(getattr(torch, "_C", None), "_cuda_hasPrimaryContext", None)
    if has_primary_context is not None:
        has_context = bool(has_primary_context(device))
    else:
        has_context = device == torch.cuda.current_device() or bool(torch.cuda.memory_reserved(device))
    if not has_context:
        return None, torch.cuda.get_device_properties(device).total_memory / _GB
    free, total = torch.cuda.mem_get_info(device)
    return free / _GB, total / _GB


def own_gb(torch: Any, device: int) -> tuple[float, float]:
    """Return the GB of a GPU in tensors of this process, and the most that there ever were."""
    return torch.cuda.memory_allocated(device) / _GB, torch.cuda.max_memory_allocated(device) / _GB
