"""What `clusterfn.gpu` does around CUDA code: ask, load, compute, give back, and explain a failure.

python examples/gpu_helpers.py                                  on this machine, with or without a GPU
python examples/gpu_helpers.py --host tensor01 --environment "python:~/envs/ml/bin/python" --gpus 1

Without PyTorch a list of numbers plays the model.
"""

from __future__ import annotations

import argparse
from typing import Any

from clusterfn import cluster


class Numbers(list[float]):
    """A model for machines without PyTorch."""

    def close(self) -> None:
        """Forget the weights."""
        self.clear()


@cluster(cores=1, memory="4GB", allow_cpu=True)
def manage_resources(size: int) -> dict[str, Any]:
    """Load a model on the best device there is, use it, and leave nothing behind."""
    from clusterfn import gpu

    hardware = gpu.detect_hardware()
    print(f"device: {hardware.device}", f"({hardware.why_cpu})" if hardware.why_cpu else "")
    batch = gpu.get_recommended_batch_size(item_gb=0.01, model_gb=1.0, least=8, most=256)

    def load() -> Any:
        try:
            import torch
        except ModuleNotFoundError:
            return Numbers([1.0] * size)
        return torch.nn.Linear(size, 1).to(hardware.device)

    @gpu.retry_transient(attempts=3, backoff_s=0.1)
    def compute(model: Any) -> int:
        weights = model if isinstance(model, list) else model.weight.flatten().tolist()
        return len(weights)

    with gpu.GpuMonitor(interval_s=0.5) as monitor, gpu.sync_model_context(load) as model:
        weights = compute(model)
    print(monitor)

    explained = "nothing"
    try:
        with gpu.cuda_error_context("sharing a tensor"):
            raise RuntimeError("CUDA error: invalid resource handle")  # what CUDA says of another process's tensor
    except RuntimeError as error:
        explained = gpu.classify(error).name
    in_use = gpu.safe_cuda_operation(gpu.get_safe_vram_usage, "asking for memory in use")
    return {"device": hardware.device, "batch": batch, "weights": weights, "explained": explained, "in use": in_use}


def main() -> None:
    """Run it once, and print what it found."""
    parser = argparse.ArgumentParser(description="Load a model, use it, and give everything back.")
    parser.add_argument("--host")
    parser.add_argument("--environment")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--size", type=int, default=1000)
    asked = parser.parse_args()
    where = {name: value for name in ("host", "environment") if (value := getattr(asked, name))}
    found = manage_resources.with_options(gpus=asked.gpus, **where)(asked.size)
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
