"""Measure how fast a host multiplies matrices: on its CPU, and on its GPU if the job has one.

    python examples/matrix_benchmark.py --host tensor01 --environment "python:~/envs/ml/bin/python" --gpus 1 --cores 8

The environment needs PyTorch. Without a GPU it measures only the CPU, and prints the reason.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from clusterfn import cluster

REPEATS = 5


def best_s(multiply: Callable[[], Any], finish: Callable[[], None]) -> float:
    """Seconds of the fastest of several runs, after one that does not count.

    A GPU keeps working while Python continues: without `finish` this would measure only the sending of the work.
    """
    multiply()
    finish()
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        multiply()
        finish()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def measure(size: int, device: str) -> dict[str, Any]:
    """One row of the table: `size` x `size` in single precision, which takes 2 * size**3 operations."""
    import torch

    a, b = torch.rand(size, size, device=device), torch.rand(size, size, device=device)
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = best_s(lambda: a @ b, finish)
    row, column = a[0].double(), b[:, 0].double()
    right = abs(((a @ b)[0, 0] - row @ column).item()) < 1e-2 * size**0.5
    return {"size": size, "device": device, "seconds": seconds, "gflops": 2 * size**3 / seconds / 1e9, "right": right}


@cluster(memory="4GB")
def benchmark(sizes: list[int]) -> tuple[str, list[dict[str, Any]]]:
    """What was measured with, and the rows."""
    import os

    import torch

    torch.backends.cuda.matmul.allow_tf32 = False  # the same precision on both
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rows = [measure(size, "cpu") for size in sizes]
    threads = f"{torch.get_num_threads()} threads"
    if not torch.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        build = "PyTorch is a build without CUDA" if torch.version.cuda is None else "PyTorch finds no GPU"
        why = "the job has no GPU: ask by --gpus 1" if hidden else build
        return f"processor alone, {threads} ({why})", rows
    rows += [measure(size, "cuda") for size in sizes]
    return f"{torch.cuda.get_device_name()} and {threads}", rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, with how many times faster the GPU is than the CPU."""
    of_cpu = {row["size"]: row["seconds"] for row in rows if row["device"] == "cpu"}
    lines = [f"{'size':>6} {'device':>6} {'ms':>10} {'GFLOP/s':>10} {'faster':>8}"]
    for row in rows:
        faster = of_cpu[row["size"]] / row["seconds"]
        cells = f"{row['size']:>6} {row['device']:>6} {row['seconds'] * 1e3:>10.3f} {row['gflops']:>10.1f}"
        lines.append(f"{cells} {faster:>7.1f}x" + ("" if row["right"] else "  WRONG"))
    return "\n".join(lines)


def main() -> None:
    """Measure where the command line says, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="a host of clusterfn.yml")
    parser.add_argument("--environment", help='such as "conda:ml" or "python:/path/to/python"')
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096])
    asked = parser.parse_args()
    where = {name: getattr(asked, name) for name in ("host", "environment") if getattr(asked, name)}

    measured, rows = benchmark.with_options(gpus=asked.gpus, cores=asked.cores, **where)(asked.sizes)
    print(f"measured: {measured}")
    print(table(rows))


if __name__ == "__main__":
    main()
