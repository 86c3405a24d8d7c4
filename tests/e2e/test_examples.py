"""The examples do what they say, on every kind of host; the six functions that failed elsewhere return their values."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.timeout(600)
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


def run(name, *argv, cwd=None, **variables):
    """stdout of an example."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *argv],
        capture_output=True, text=True, timeout=500, cwd=cwd, env={**os.environ, **variables}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def six_results(out):
    """What examples/tensor01.py printed: name -> value, and the lines that the functions printed."""
    names = ("simple_test", "gpu_detection", "torch_version", "gpu_maths", "complex_gpu_test", "matrix_computation")
    lines = [line for line in out.splitlines() if line.partition(" ")[0] in names]
    assert [line.partition(" ")[0] for line in lines] == list(names)
    values = dict(line.split(" ", 1) for line in lines)
    read = {name: text if name == "torch_version" else ast.literal_eval(text) for name, text in values.items()}
    return read, [line for line in out.splitlines() if line not in lines]


def check_six(out, cards):
    found, printed = six_results(out)
    assert found["simple_test"]["python_version"].startswith(f"3.{sys.version_info[1]}.")
    assert found["simple_test"]["conda_env"] == "torch"
    assert found["simple_test"]["test_result"] == "SUCCESS"
    assert found["gpu_detection"]["gpu_count"] == len(found["gpu_detection"]["gpus"]) == cards
    assert found["torch_version"].startswith("VERSION:2.")
    assert found["torch_version"].endswith(", CUDA:False")
    assert printed == ["adding on cpu", "RESULT:[4.0, 6.0]"]
    assert found["gpu_maths"] == {"device": "cpu", "sum": [4.0, 6.0]}
    check_complex(found["complex_gpu_test"], cards)
    check_matrices(found["matrix_computation"])


def check_complex(found, cards):
    assert found["gpu_count"] == cards
    assert found["detection"] == ("SUCCESS" if cards else "no nvidia-smi")
    assert found["version"]["TORCH_VERSION"].startswith("2.")
    assert found["version"]["CUDA_AVAILABLE"] == "False"
    assert found["maths"] == {"DEVICE": "cpu", "RESULT": "[4.0, 6.0]"}
    assert found["memory"]["MEMORY_CPU"] == "$HOME `quoted` \"twice\" 'once' \\ and ä"
    assert found["nested"] == "a failure that is expected, and the one that follows"
    assert found["test_result"] == "SUCCESS"


def check_matrices(found):
    assert (found["size"], found["device"], found["right"], found["trace"]) == (512, "cpu", True, 1024.0)
    assert 0 < found["seconds"] < 60
    assert found["memory_mb"] > 50
    assert found["text"] == "quotes \" and ''' and $HOME and `id` and ü"


@pytest.mark.lab
def test_the_training_that_may_be_interrupted(hosts, lab, torch, tmp_path):
    config = hosts.describe(lab, tmp_path / "clusterfn.yml", lab.torch_python, names=("tensor01",))

    out = run("checkpoints.py", "tensor01", CLUSTERFN_CONFIG=str(config))

    assert out.splitlines()[0] == "saved: training.state"
    assert re.fullmatch(r"weight [23]\.\d\d, bias [01]\.\d\d", out.splitlines()[1])


@pytest.mark.lab
@pytest.mark.long
def test_the_six_functions_on_a_box_of_eight_gpus(hosts, torch, gpubox_reset):
    out = run("tensor01.py", "--host", "tensor01", "--environment", torch, "--gpus", "1")

    check_six(out, cards=8)


@pytest.mark.lab
@pytest.mark.long
def test_the_six_functions_on_slurm(hosts, torch):
    out = run("tensor01.py", "--host", "slurm", "--environment", torch, "--memory", "2GB")

    check_six(out, cards=0)


def test_the_first_example_needs_no_server_and_no_configuration(tmp_path, monkeypatch):
    monkeypatch.delenv("CLUSTERFN_CONFIG")

    out = run("first.py", cwd=tmp_path, HOME=str(tmp_path))

    assert "primes below a million: 78498" in out
    assert "caught: this was raised in the other process" in out
    here, there = (line.rpartition(" ")[2] for line in out.splitlines()[:2])
    assert here != there


def test_many_calls_here(here):
    first, *others, last = run("many_calls.py").splitlines()

    assert (first, last) == ("mean of 8 estimates: 3.14", "one of 3 jobs: 3.1")
    assert set(others) == {"1000 points: 3.1", "2000 points: 3.2", "0 points: ZeroDivisionError('division by zero')"}


def test_files_here(here):
    assert run("files.py").splitlines() == [
        "means: {'height': 175.0, 'weight': 70.0}",
        "left there: means.tsv",
        "fetched: ['height\\t175.0', 'weight\\t70.0']",
    ]


@pytest.mark.lab
def test_three_of_135_retrieval_configurations(hosts, torch, tmp_path):
    where = ("--host", "local", "--environment", torch, "--indexes", str(tmp_path / "indexes"))
    asked = (*where, "--max-configs", "3", "--seed", "73")

    printed = run("retrieval_grid.py", *asked)

    assert re.fullmatch(r"best: GRID_0(031|071|128) \(score [01]\.\d+\) \{.*\}\n", printed)
    built = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "indexes").iterdir()}
    run("retrieval_grid.py", *asked)
    assert set(built) == {"bge-flat.faiss", "gte-ivf.faiss", "splade-hnsw.faiss"}
    assert built == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "indexes").iterdir()}


def differences(out):
    """What examples/ddp.py printed: processes, and the largest differences."""
    first, loss, ranks, alone = out.splitlines()
    before, after = (float(word) for word in loss.split() if word[0].isdigit())
    assert after < before
    return first, float(ranks.rpartition(" ")[2]), float(alone.rpartition(" ")[2])


@pytest.mark.lab
@pytest.mark.long  # in tests/e2e/test_frameworks.py, too, processes on SLURM learn together
@pytest.mark.parametrize("nodes", [1, 2])
def test_processes_that_share_a_batch_learn_what_one_learns(hosts, torch, nodes):
    out = run("ddp.py", "--host", "slurm", "--environment", torch, "--nodes", str(nodes))

    first, between_ranks, from_one = differences(out)
    assert first == f"{2 * nodes} processes on {nodes} node(s), cpu"
    assert between_ranks == 0.0
    assert from_one < 1e-12


@pytest.mark.lab
def test_matrices_are_measured_without_a_gpu_too(hosts, torch):
    out = run("matrix_benchmark.py", "--host", "slurm", "--environment", torch, "--sizes", "32", "64")

    measured, _, *rows = out.splitlines()
    assert measured == "measured: processor alone, 1 threads (the job has no GPU: ask by --gpus 1)"
    assert [row.split()[:2] for row in rows] == [["32", "cpu"], ["64", "cpu"]]
    assert all(float(row.split()[3]) > 0 and row.endswith("1.0x") for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("argv", [("ddp.py",), ("matrix_benchmark.py", "--sizes", "256")])
def test_with_a_gpu_of_this_machine(here, argv):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no card here")
    where = ("--processes", "1") if argv[0] == "ddp.py" else ()

    assert "cuda" in run(*argv, "--gpus", "1", *where)


def test_the_helpers_for_gpus_work_on_a_machine_without_one(tmp_path, monkeypatch):
    monkeypatch.delenv("CLUSTERFN_CONFIG")

    out = run("gpu_helpers.py", "--size", "100", cwd=tmp_path, HOME=str(tmp_path), CUDA_VISIBLE_DEVICES="")

    told = dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)
    assert told["device"] == "cpu"
    assert (told["batch"], told["weights"]) == ("8", "100")
    assert told["explained"] == "cudaErrorInvalidResourceHandle"


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_example_says_how_it_is_run(name):
    told = ast.get_docstring(ast.parse((EXAMPLES / name).read_text(encoding="utf-8")))

    assert told is not None
    assert f"python examples/{name}" in told


def test_every_script_is_run_by_a_test():
    known = "checkpoints compare_models ddp files first frameworks gpu_helpers many_calls matrix_benchmark"
    assert [f"{name}.py" for name in [*known.split(), "retrieval_grid", "tensor01"]] == SCRIPTS
