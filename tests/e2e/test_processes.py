"""Processes that a function starts: all that multiprocessing offers works, called from wherever, and ends with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn import cluster
from tests.e2e.test_notebook import of_cells, run_notebook
from tests.waiting import until

# The names are such as stand in the script of the worker too; only an argument has a Point.
DEFINITIONS = """
import json, multiprocessing, operator, sys
from concurrent.futures import ProcessPoolExecutor
from clusterfn import cluster
OFFSET = 100

class Point:
    def __init__(self, x):
        self.x = x
    def moved(self):
        return self.x + 1

def worker(n, queue):
    queue.put(n + OFFSET)

def here(n):
    return -n

def everything(points, apply):
    found = []
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=worker, args=(1, queue))
        process.start()
        found.append(queue.get(timeout=150))
        process.join()
        with context.Pool(2) as pool:
            found += pool.map(apply, [2, 3]) + pool.map(operator.methodcaller("moved"), points)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found += pool.map(here, [4])
    return found
"""
FOUND = [101, -2, -3, 8, -4] * 2


@pytest.mark.lab
def test_of_a_script(hosts, run_script):
    call = "print(json.dumps(cluster(host='tensor01')(everything)([Point(7)], here)))"

    assert run_script(DEFINITIONS + call) == FOUND


def test_of_a_program_on_the_command_line(here, tmp_path):
    call = "print(json.dumps(cluster(everything)([Point(7)], here)))"
    done = subprocess.run(
        [sys.executable, "-c", DEFINITIONS + call], capture_output=True, text=True, timeout=150, cwd=tmp_path
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == FOUND


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_of_cells(here, tmp_path):
    found = run_notebook(of_cells(DEFINITIONS, "cluster(everything)([Point(7)], here)"), tmp_path)

    assert found[1][1] == str(FOUND)


def test_of_the_items_of_a_group(here, run_script):
    calls = """
@cluster
def moves(point):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(operator.methodcaller("moved"), [point])
print(json.dumps(moves.map([Point(7), Point(8)]).results()))
"""

    assert run_script(DEFINITIONS + calls) == [[8], [9]]


def test_of_the_items_of_a_group_that_start_their_program_again(here, run_script):
    calls = """
import os, subprocess
@cluster
def moves(point):
    if "LOCAL_RANK" in os.environ:
        print("rank", point.moved())
        return threading.Lock()
    env = {**os.environ, "LOCAL_RANK": "1"}
    done = subprocess.run([sys.executable, *sys.argv], env=env, capture_output=True, text=True)
    if done.returncode or point.x > 7:
        raise RuntimeError(done.stderr)
    return done.stdout
group = moves.map([Point(7), Point(8)])
print(json.dumps([str(result) for result in group.results()]))
"""

    assert run_script("import threading\n" + DEFINITIONS + calls) == ["rank 8\n", ""]


def loky(numbers):
    from joblib import Parallel, delayed

    return Parallel(n_jobs=2)(delayed(loky.double)(n) for n in numbers)


loky.double = lambda n: 2 * n


def test_of_joblib(here):
    assert cluster(loky)([1, 2, 3]) == [2, 4, 6]


ON_A_CARD = """
import json, os, torch
import torch.multiprocessing as multiprocessing
from clusterfn import cluster

def sends(queue, taken):
    queue.put(torch.tensor([1.0, 2.0], device="cuda"))
    taken.wait()

@cluster(gpus=1, memory="8GB")
def takes():
    context = multiprocessing.get_context("spawn")
    queue, taken = context.Queue(), context.Event()
    process = context.Process(target=sends, args=(queue, taken))
    process.start()
    tensor = queue.get()
    found = tensor.device.type, (tensor + 2).tolist()
    del tensor
    taken.set()
    process.join()
    if not os.fork():
        os._exit(0)
    os.wait()
    return found

job = takes.submit()
print(json.dumps([job.result(), job.logs("stderr").count("get_context('spawn')")]))
"""


@pytest.mark.gpu
def test_a_tensor_stays_on_the_gpu_between_processes_and_a_fork_is_reported(here, run_script):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no card here")

    assert run_script(ON_A_CARD) == [["cuda", [3.0, 4.0]], 1]


def leaves_open(kind):
    import multiprocessing
    import time

    context = multiprocessing.get_context("spawn")
    if kind == "pool":
        leaves_open.pool = context.Pool(1)
        leaves_open.pool.map(abs, [-1])
    else:
        context.Process(target=time.sleep, args=(1000,)).start()
    return [process.pid for process in multiprocessing.active_children()]


@pytest.mark.parametrize("kind", ["pool", pytest.param("process", marks=pytest.mark.long)])
def test_what_is_left_open_neither_holds_the_value_back_nor_stays(here, kind):
    pids = cluster(leaves_open)(kind)

    assert pids
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


LARGE = """
import json, multiprocessing, pickle
from clusterfn import cluster

class Large:
    def __init__(self, data):
        self.data = data
    def __reduce_ex__(self, protocol):
        return Large, (pickle.PickleBuffer(self.data),)

def peak(n):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

@cluster
def peaks(large):
    sum(large.data[::4096])  # it is mapped: what is not read takes no memory here either
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return peak(0), pool.map(peak, [0])[0]

print(json.dumps(peaks(Large(bytearray(48 << 20)))))
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="this machine tells nothing of memory")
def test_large_arguments_do_not_fill_the_memory_of_each_process(here, run_script):
    own, child = run_script(LARGE)

    assert own > 48 << 10
    assert child < 40 << 10, "kB"
