"""Helpers for code that uses CUDA, in a job or in any script; the standard library is all they need.

    from clusterfn.gpu import gpu_memory_context, cuda_error_context, sync_model_context

    with sync_model_context(load_clip) as model, cuda_error_context("embedding the images"):
        vectors = embed(model, images)

Three rules. Questions (`get_safe_...`, `detect_hardware`, `supports_fp8`, `get_recommended_batch_size`,
`get_optimal_providers`, `GpuMonitor`) never fail, and have a documented answer for a machine without a GPU. They never
make the process use CUDA, so it can still fork. What is asked for (`validate_...`) never falls back: it raises. Errors
are the program's own: they are explained, not replaced.
"""

from clusterfn.gpu.contexts import (
    async_gpu_memory_context,
    gpu_memory_context,
    model_context,
    release_memory,
    retry_transient,
    sync_model_context,
)
from clusterfn.gpu.devices import GpuInfo, get_safe_gpu_info, get_safe_vram_usage, validate_vram_usage
from clusterfn.gpu.guards import Fault, classify, cuda_error_context, safe_cuda_operation
from clusterfn.gpu.hardware import (
    Hardware,
    detect_hardware,
    get_optimal_providers,
    get_recommended_batch_size,
    supports_fp8,
    validate_startup_configuration,
)
from clusterfn.gpu.monitor import GpuMonitor, GpuUse
from clusterfn.gpu.smi import Gpu

__all__ = [
    "Fault",
    "Gpu",
    "GpuInfo",
    "GpuMonitor",
    "GpuUse",
    "Hardware",
    "async_gpu_memory_context",
    "classify",
    "cuda_error_context",
    "detect_hardware",
    "get_optimal_providers",
    "get_recommended_batch_size",
    "get_safe_gpu_info",
    "get_safe_vram_usage",
    "gpu_memory_context",
    "model_context",
    "release_memory",
    "retry_transient",
    "safe_cuda_operation",
    "supports_fp8",
    "sync_model_context",
    "validate_startup_configuration",
    "validate_vram_usage",
]
