"""What the helpers of clusterfn.gpu add to calls that succeed, and what a question about the GPUs costs."""

from __future__ import annotations

from benchmarks.measure import in_turns, seconds
from benchmarks.report import Row
from clusterfn import gpu

_CALLS = 1000


def _nothing() -> float:
    return 0.0


def _in_error_context() -> float:
    with gpu.cuda_error_context("doing nothing"):
        return 0.0


def _in_memory_context() -> float:
    with gpu.gpu_memory_context():
        return 0.0


def _with_model() -> object:
    with gpu.sync_model_context(_nothing) as model:
        return model


def overhead() -> list[Row]:
    """A thousand calls of nothing, plain and by each helper; milliseconds of a thousand are microseconds of one."""
    parts = {
        "plain": _nothing,
        "safe_cuda_operation": lambda: gpu.safe_cuda_operation(_nothing, "doing nothing"),
        "cuda_error_context": _in_error_context,
        "retry_transient": gpu.retry_transient(_nothing),
        "gpu_memory_context without CUDA": _in_memory_context,
        "sync_model_context without CUDA": _with_model,
    }
    taken = in_turns(
        {name: lambda fn=fn: seconds(lambda: [fn() for _ in range(_CALLS)]) for name, fn in parts.items()}, 15
    )
    asked = in_turns({"asked": lambda: seconds(gpu.get_safe_gpu_info)}, 15)["asked"]
    return [
        *(Row(f"{_CALLS} calls, {name}", series) for name, series in taken.items()),
        Row("get_safe_gpu_info where this ran", asked),
    ]
