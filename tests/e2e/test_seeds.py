"""Programs of the kind that people bring, with nothing changed but the import: they run, and where the result has to
differ from that on their own machine one line says why.

Each is written here in our own words. The examples hold the same calculations as clusterfn would have them written.
"""

from __future__ import annotations

import re
import sys

import pytest

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lab's PyTorch is for Python 3.11"),
]


@pytest.fixture
def on(hosts, lab, tmp_path, monkeypatch, gpubox_reset):
    """Make one host the default, whose jobs run in the environment with PyTorch."""

    def choose(host):
        path = hosts.describe(lab, tmp_path / "clusterfn.yml", lab.torch_python, names=(host,))
        path.write_text(f"default_host: {host}\n{path.read_text()}")
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    return choose


FIRST_STEPS = """
import json, os, subprocess, sys
from clusterfn import cluster

@cluster(cores=1, memory="2GB")
def simple_test():
    import os, sys
    return {"python_version": sys.version, "conda_env": os.environ.get("CONDA_DEFAULT_ENV"), "test_result": "SUCCESS"}

@cluster(cores=1, memory="4GB")
def gpu_detection():
    import subprocess
    result = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    gpus = [line for line in result.stdout.splitlines() if line.strip()]
    return {"gpu_count": len(gpus), "gpus": gpus}

@cluster(cores=1, memory="4GB")
def pytorch_check():
    import subprocess
    code = "import torch; print(f'VERSION:{torch.__version__}'); print(f'CUDA:{torch.cuda.is_available()}')"
    result = subprocess.run(["python", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return result

@cluster(cores=1, memory="4GB")
def simple_gpu_math():
    import subprocess
    code = "import torch; a, b = torch.tensor([1.0, 2.0]).cuda(), torch.tensor([3.0, 4.0]).cuda(); print((a + b).cpu())"
    return subprocess.run(["python", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

@cluster(cores=2, memory="4GB")
def complex_gpu_test():
    import subprocess
    results = {"steps": [], "errors": []}
    checks = [("list", ["nvidia-smi", "-L"]), ("maths", ["python", "-c", '''
a = [1.0, 2.0]
b = [3.0, 4.0]
print("RESULT:" + str([x + y for x, y in zip(a, b)]))
''']), ("failure", ["python", "-c", "raise SystemExit('expected \\"$HOME\\"')"])]
    for name, command in checks:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=150)
            try:
                if done.returncode:
                    raise RuntimeError(done.stderr.strip())
                results["steps"].append((name, done.stdout.strip().splitlines()[-1]))
            except RuntimeError as error:
                results["errors"].append((name, str(error)))
        except FileNotFoundError as missing:
            results["errors"].append((name, f"no {missing.filename}"))
    return results

@cluster(cores=2, memory="8GB")
def matrix_computation(dedented):
    import subprocess, textwrap
    code = '''
        import time
        size, began = 40, time.time()
        rows = [[float(i == j) for j in range(size)] for i in range(size)]
        product = [[sum(a * b for a, b in zip(row, column)) for column in zip(*rows)] for row in rows]
        print(f"TRACE:{sum(product[i][i] for i in range(size))}")
        print("TEXT:quotes \\\\" and $HOME and `id` and \\u00fc")
    '''
    code = textwrap.dedent(code) if dedented else code
    return subprocess.run(["python", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

"""

ALL_STEPS = """
indented, dedented = matrix_computation(False), matrix_computation(True)
on_gpus = []
for job in (pytorch_check.submit(), simple_gpu_math.submit()):
    done = job.result()
    on_gpus.append([done.returncode, done.stdout, done.stderr, job.notes])
print(json.dumps([simple_test(), gpu_detection(), on_gpus, complex_gpu_test(),
                  indented.stderr, [dedented.stdout, dedented.returncode]]))
"""


def test_first_steps_on_a_server_with_gpus(on, run_script):
    on("tensor01")

    simple, detected, on_gpus, mixed, indented, dedented = run_script(FIRST_STEPS + ALL_STEPS)

    assert (simple["python_version"][:5], simple["test_result"]) == ("3.11.", "SUCCESS")
    assert simple["conda_env"] is None  # a virtual environment is none of conda's
    assert detected["gpu_count"] == 8 and "RTX A6000" in detected["gpus"][7]
    (status, torch, _, why), (failed, _, told, why_too) = on_gpus
    assert re.fullmatch(r"VERSION:2\.\S+\nCUDA:False\n", torch) and status == 0
    assert failed == 1 and "CUDA" in told
    assert why == why_too and why[0].startswith("this job has no GPU: it asked for none (gpus=0)")
    assert [name for name, _ in mixed["steps"]] == ["list", "maths"]
    assert mixed["steps"][1][1] == "RESULT:[4.0, 6.0]"
    assert mixed["errors"] == [["failure", 'expected "$HOME"']]
    assert "IndentationError: unexpected indent" in indented  # Python's own word on a program that begins indented
    assert dedented == ['TRACE:40.0\nTEXT:quotes " and $HOME and `id` and ü\n', 0]


ON_SLURM = """
def kind_of(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return [type(error).__name__, str(error)]

print(json.dumps([kind_of(gpu_detection), kind_of(matrix_computation, True)]))
"""


def test_first_steps_on_slurm_say_why_they_cannot_run(on, run_script):
    """The nodes have neither nvidia-smi nor 8 GB."""
    on("slurm")

    missing, too_large = run_script(FIRST_STEPS + ON_SLURM)

    assert missing[0] == "FileNotFoundError" and "nvidia-smi" in missing[1]
    assert too_large[0] == "Unsatisfiable" and "Memory specification can not be satisfied" in too_large[1]
    assert "next:" in too_large[1]


GRID = """
import contextlib, io, json, multiprocessing, random
from clusterfn import cluster

try:
    import torch
    TORCH_AVAILABLE = True
except ImportError:
    TORCH_AVAILABLE = False

def evaluate(config):
    return {"id": config["id"], "score": round(1 / (1 + config["k"]), 3), "pipeline": config["pipeline"]}

class GridSearch:
    def __init__(self, configs):
        self.configs = configs

    def run_phase1(self, max_configs=None):
        if max_configs is not None and max_configs < len(self.configs):
            print(f"Capping configurations from {len(self.configs)} to {max_configs} as requested")
            self.configs = random.Random(1).sample(self.configs, max_configs)
        if TORCH_AVAILABLE and torch.cuda.is_available():
            print("CUDA detected: Using serial execution")
            results = [evaluate(config) for config in self.configs]
        else:
            print("No CUDA detected: Using parallel execution")
            with multiprocessing.get_context("spawn").Pool(min(4, len(self.configs) or 1)) as pool:
                results = pool.map(evaluate, self.configs)
        if not results:
            raise RuntimeError("Phase 1 aborted - no configurations completed successfully. Check worker logs.")
        print(f"✅ Phase 1 complete: {len(results)} configurations tested")
        return results

CONFIGS = [{"id": f"GRID_{n:04}", "k": n, "pipeline": ("vector_only", "reranker_only")[n % 2]} for n in range(135)]

@cluster(cores=2, memory="2GB")
def grid(configs, max_configs):
    return GridSearch(configs).run_phase1(max_configs)

@cluster(cores=1, memory="2GB")
def build_index():
    import faiss, numpy
    index = faiss.IndexHNSWFlat(4, 8)
    index.add(numpy.eye(4, dtype="float32"))
    try:
        return index
    except Exception:
        flat = faiss.IndexFlatL2(index.d)
        flat.add(index.reconstruct_n(0, index.ntotal))
        return flat

def kind_of(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return [type(error).__name__, str(error)]

out, err = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    results = grid(CONFIGS, 3)
empty, index = kind_of(grid, [], None), kind_of(build_index)
if index.__class__.__name__ == "IndexHNSWFlat":
    index = index.ntotal
print(json.dumps([results, TORCH_AVAILABLE, out.getvalue(), err.getvalue(), empty, index]))
"""


def test_a_capped_grid_runs_in_processes_and_an_empty_one_is_an_error(on, run_script):
    on("tensor01")

    results, here, printed, told, empty, index = run_script(GRID)

    assert len(results) == 3 and all(re.fullmatch(r"GRID_\d{4}", result["id"]) for result in results)
    assert printed.splitlines() == [
        "Capping configurations from 135 to 3 as requested",
        "No CUDA detected: Using parallel execution",
        "✅ Phase 1 complete: 3 configurations tested",
    ]
    assert empty[0] == "RuntimeError" and empty[1].startswith("Phase 1 aborted - no configurations completed")
    assert here or "TORCH_AVAILABLE is False" in told and "because this machine has no torch" in told
    # An HNSW index travels as it is; a client without faiss cannot load it, and is told so.
    assert index == 4 or (index[0] == "ResultError" and "the value needs the module faiss" in index[1])


MODELS = """
import argparse, json, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from clusterfn import File, cluster

def evaluate_model(path):
    return {"score": float(Path(path).read_text()), "pid_known": True}

@cluster(cores=2, memory="2GB")
def compare_models_parallel_fixed(model_paths, max_workers=3):
    results, began = {}, time.time()
    if len(model_paths) <= 2:
        print(f"Using SEQUENTIAL processing to avoid GPU deadlock (models: {len(model_paths)})")
        for number, path in enumerate(model_paths, 1):
            print(f"[{number}/{len(model_paths)}] Evaluating {Path(path).name}...")
            results[path] = evaluate_model(path)
            print(f"[{number}/{len(model_paths)}] {Path(path).name} ✓ Score: {results[path]['score']:.4f}")
    else:
        print(f"Using PARALLEL processing (models: {len(model_paths)})")
        with ProcessPoolExecutor(max_workers, mp_context=get_context("spawn")) as pool:
            results.update(zip(model_paths, pool.map(evaluate_model, model_paths)))
    print("🎉 completed in %.1f seconds" % (time.time() - began))
    return results

@cluster(cores=1, memory="2GB")
def train_walk_forward(data, initial_window=5000, step_size=500, args=None):
    ends = range(initial_window, len(data) - step_size + 1, step_size)
    return [round(sum(data[end:end + step_size]) / step_size + args.bias, 3) for end in ends]

names = ["model1.zip", "model2.zip", "model3.zip"]
for number, name in enumerate(names):
    Path(name).write_text(str(0.5 + number))
found = []
for count in (1, 2, 3):
    job = compare_models_parallel_fixed.submit([File(name) for name in names[:count]], max_workers=2)
    value = job.result()
    scores = {name: value[File(name)]["score"] for name in names[:count]}  # the keys are the paths that were given
    found.append([scores, job.logs("stdout").splitlines()])
try:
    compare_models_parallel_fixed(["model1.zip"])
except Exception as error:
    plain = [type(error).__name__, str(error) + "".join(getattr(error, "__notes__", ()))]
walked = train_walk_forward(list(range(7000)), args=argparse.Namespace(bias=0.5))
print(json.dumps([found, plain, walked]))
"""


def test_models_are_compared_one_by_one_and_in_processes(on, run_script):
    on("tensor01")

    found, plain, walked = run_script(MODELS)

    assert [list(scores.values()) for scores, _ in found] == [[0.5], [0.5, 1.5], [0.5, 1.5, 2.5]]
    assert [lines[0] for _, lines in found] == [
        "Using SEQUENTIAL processing to avoid GPU deadlock (models: 1)",
        "Using SEQUENTIAL processing to avoid GPU deadlock (models: 2)",
        "Using PARALLEL processing (models: 3)",
    ]
    assert found[1][1][1:5] == [
        "[1/2] Evaluating model1.zip...", "[1/2] model1.zip ✓ Score: 0.5000",
        "[2/2] Evaluating model2.zip...", "[2/2] model2.zip ✓ Score: 1.5000",
    ]  # fmt: skip
    assert all(lines[-1].startswith("🎉 completed in ") for _, lines in found)
    assert plain[0] == "FileNotFoundError" and "File(" in plain[1]  # a plain name is not sent, and the note says how
    assert walked == [5250.0, 5750.0, 6250.0, 6750.0]


RESOURCES = """
import asyncio, json
from clusterfn import cluster

class Model:
    closed = 0

    def close(self):
        Model.closed += 1

@cluster(cores=1, memory="2GB", gpus=1)
def use_resources():
    from clusterfn.gpu import (
        cuda_error_context, get_safe_gpu_info, get_safe_vram_usage, gpu_memory_context, model_context,
        safe_cuda_operation,
    )

    with gpu_memory_context():
        used = get_safe_vram_usage()

    async def with_model():
        async with model_context(Model, cleanup_method="close") as model:
            return type(model).__name__

    name = asyncio.run(with_model())

    def broken():
        raise RuntimeError("CUDA error: device-side assert triggered")

    fallback = safe_cuda_operation(broken, "asking for use", default_return=0.0)
    try:
        with cuda_error_context("loading a model"):
            broken()
    except RuntimeError as error:
        explained = "".join(error.__notes__)
    return used >= 0.0, bool(get_safe_gpu_info()), name, Model.closed, fallback, explained

print(json.dumps(use_resources()))
"""


def test_helpers_for_cuda_keep_their_names_and_defaults(on, run_script):
    on("tensor01")

    measured, informed, name, closed, fallback, explained = run_script(RESOURCES)

    assert (measured, informed, name, closed, fallback) == (True, True, "Model", 1, 0.0)
    assert "loading a model failed on" in explained and "cudaErrorAssert" in explained
