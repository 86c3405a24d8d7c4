"""Six functions that people wanted to run on a server with eight GPUs: from "which Python is this?" to matrices.

    python examples/tensor01.py --host tensor01 --environment "python:~/envs/ml/bin/python" --gpus 1

Any host of clusterfn.yml will do, and this machine without one. Where CUDA is absent the calculations use the CPU
and say so. The environment needs PyTorch; the host itself needs nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from clusterfn import cluster


@cluster(cores=1, memory="2GB")
def simple_test() -> dict[str, str]:
    """Which interpreter and which environment a function finds."""
    import os

    environment = os.environ.get("CONDA_DEFAULT_ENV") or os.path.basename(sys.prefix)
    return {"python_version": sys.version, "conda_env": environment, "test_result": "SUCCESS"}


@cluster(cores=1, memory="4GB")
def gpu_detection() -> dict[str, Any]:
    """Every GPU of the host, as nvidia-smi lists them; none without nvidia-smi."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True)
    except FileNotFoundError:
        return {"gpu_count": 0, "gpus": []}
    found = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return {"gpu_count": len(found), "gpus": found}


@cluster(cores=1, memory="4GB")
def torch_version() -> subprocess.CompletedProcess[str]:
    """PyTorch, asked in a process of its own; `python` is the environment's. The whole CompletedProcess comes back."""
    code = "import torch; print(f'VERSION:{torch.__version__}, CUDA:{torch.cuda.is_available()}')"
    return subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=120)


@cluster(cores=2, memory="4GB", allow_cpu=True)
def gpu_maths() -> dict[str, Any]:
    """Two small tensors are added, in this process and without a string of code."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"adding on {device}")
    total = torch.tensor([1.0, 2.0], device=device) + torch.tensor([3.0, 4.0], device=device)
    values = total.cpu().tolist()  # plain numbers: a tensor would arrive too, where PyTorch is installed
    print(f"RESULT:{values}")
    return {"device": device, "sum": values}


@cluster(cores=2, memory="4GB")
def complex_gpu_test() -> dict[str, Any]:
    """Several child processes, nested try/except, long strings of code and many variables."""
    results: dict[str, Any] = {}
    try:
        smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
        results["gpu_count"] = smi.stdout.count("GPU ")
        results["detection"] = "SUCCESS" if smi.returncode == 0 else f"exit {smi.returncode}"
    except FileNotFoundError as missing:
        results["gpu_count"] = 0
        results["detection"] = f"no {missing.filename}"

    version_code = """
import sys
import torch
print("TORCH_VERSION:" + torch.__version__)
print("CUDA_VERSION:" + str(torch.version.cuda))
print("CUDA_AVAILABLE:" + str(torch.cuda.is_available()))
print("DEVICES:" + str(torch.cuda.device_count()), file=sys.stdout)
"""
    maths_code = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
a = torch.tensor([1.0, 2.0]).to(device)
b = torch.tensor([3.0, 4.0]).to(device)
print('DEVICE:' + device)
print("RESULT:" + str((a + b).cpu().tolist()))
"""
    memory_code = r"""
import torch
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        total = torch.cuda.get_device_properties(index).total_memory
        print(f"MEMORY_{index}:{total / 2**30:.1f}")
else:
    print("MEMORY_CPU:$HOME `quoted` \"twice\" 'once' \\ and ä")
"""
    for name, code in [("version", version_code), ("maths", maths_code), ("memory", memory_code)]:
        try:
            done = subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=120)
            try:
                done.check_returncode()
                pairs = [line.split(":", 1) for line in done.stdout.splitlines() if ":" in line]
                results[name] = {key: value for key, value in pairs}
            except subprocess.CalledProcessError:
                results[name] = {"ERROR": done.stderr.splitlines()[-1]}
        except subprocess.TimeoutExpired:
            results[name] = {"ERROR": "timed out"}

    try:
        try:
            raise ValueError("a failure that is expected")
        except ValueError as error:
            results["nested"] = str(error)
            raise RuntimeError("and the one that follows") from error
    except RuntimeError as error:
        results["nested"] += f", {error}"
    results["test_result"] = "SUCCESS"
    return results


@cluster(cores=2, memory="8GB")
def matrix_computation(size: int = 512) -> dict[str, Any]:
    """More than twenty lines of code as one string: matrices, times and memory, printed as JSON."""
    code = f"""
import json
import sys
import time
import torch

size = {size}
found = {{"size": size}}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
found["device"] = device.type
try:
    torch.manual_seed(0)
    a = torch.rand(size, size, device=device)
    b = torch.eye(size, device=device) * 2
    begin = time.perf_counter()
    for _ in range(5):
        c = a @ b
    if device.type == "cuda":
        torch.cuda.synchronize()
    found["seconds"] = time.perf_counter() - begin
    found["right"] = bool(torch.allclose(c, a * 2))
    found["trace"] = round(float(torch.trace(b)), 3)
    if device.type == "cuda":
        found["memory_mb"] = torch.cuda.max_memory_allocated() / 2**20
    else:
        import resource
        found["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found["text"] = 'quotes " and \\'\\'\\' and $HOME and `id` and ü'
except RuntimeError as error:
    found["error"] = str(error)
    print(json.dumps(found))
    sys.exit(1)
print(json.dumps(found))
"""
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"the matrices failed: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Run all six on the host that the command line names, and print what came back."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="a host of clusterfn.yml")
    parser.add_argument("--environment", help='such as "conda:ml" or "python:/path/to/python"')
    parser.add_argument("--gpus", type=int, default=0, help="GPUs for the functions that calculate")
    parser.add_argument("--memory", help='for each function, instead of what it asks for, such as "2GB"')
    asked = parser.parse_args()
    where = {name: getattr(asked, name) for name in ("host", "environment", "memory") if getattr(asked, name)}

    print("simple_test", simple_test.with_options(**where)())
    print("gpu_detection", gpu_detection.with_options(**where)())
    version = torch_version.with_options(**where, gpus=asked.gpus)()
    print("torch_version", version.stdout.strip() or version.stderr.splitlines()[-1])
    print("gpu_maths", gpu_maths.with_options(**where, gpus=asked.gpus)())
    print("complex_gpu_test", complex_gpu_test.with_options(**where, gpus=asked.gpus)())
    print("matrix_computation", matrix_computation.with_options(**where, gpus=asked.gpus)())


if __name__ == "__main__":
    main()
