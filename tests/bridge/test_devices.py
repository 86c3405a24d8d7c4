"""A job's GPUs and the PyTorch that its function imports: nothing runs on the CPU unnoticed, and nothing is guessed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.cards import machine
from tests.bridge.host import Bench

TORCH = "from torch import version\n__version__ = version.__version__\n"
CUDA = "class cuda:\n    _device_count_nvml = staticmethod(lambda: 1)\n    is_available = staticmethod(lambda: True)\n"
IMPORTS = "def f():\n    import torch\n    return torch.__version__\n"
FINDS = "def f():\n    import importlib.util as u\n    return u.find_spec('torch') and __import__('torch').f\n"
BROAD = "def f():\n    try:\n        import torch\n    except {}:\n        return 'without'\n"


class Desk:
    """Runs functions on a machine with GPUs whose environment has a PyTorch of some build."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        machine(folder / "bin", *[("NVIDIA RTX A6000", 49140)] * 2)
        self._bench = bench
        self._path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self._modules = folder / "site"
        self.torch("2.7.1+cu118", "'11.8'", CUDA)

    def torch(self, version: str, cuda: str, code: str = "") -> None:
        """Install that build; version.py is as PyTorch's own."""
        folder = self._modules / "torch"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(TORCH + code)
        typed = f"from typing import Optional\n__all__ = ['cuda']\n__version__ = '{version}'\ndebug = False\n"
        (folder / "version.py").write_text(f"{typed}cuda: Optional[str] = {cuda}\nhip: Optional[str] = None\n")

    def run(self, source: str, gpus: int, **more: Any) -> dict[str, Any]:
        job = self._bench.job(source, resources={"gpus": gpus, **more}, sys_path=[str(self._modules)])
        return job.run(PATH=self._path)


@pytest.fixture
def desk(bench: Bench, tmp_path: Path) -> Desk:
    return Desk(bench, tmp_path)


def test_a_build_without_cuda_is_refused_where_gpus_were_asked_for(desk: Desk):
    desk.torch("2.13.0+cpu", "None")

    outcome = desk.run(IMPORTS, 1)

    assert (outcome["kind"], outcome["stage"]) == ("environment", "environment")
    assert outcome["message"].startswith("this job asked for 1 GPU, and PyTorch 2.13.0+cpu in ")
    assert outcome["message"].endswith("is a build without CUDA")
    assert "@cluster(allow_cpu=True)" in outcome["hint"]


def test_a_package_that_looks_for_torch_before_it_imports_it_changes_nothing(desk: Desk):
    desk.torch("2.13.0+cpu", "None")

    outcome = desk.run(FINDS, 1)

    assert outcome["kind"] == "environment"


def test_it_runs_on_the_cpu_if_that_was_allowed_and_says_so(desk: Desk):
    desk.torch("2.13.0+cpu", "None")

    outcome = desk.run(IMPORTS, 1, allow_cpu=True)

    assert outcome["kind"] == "returned"
    assert any("2.13.0+cpu" in note and "a build without CUDA" in note for note in outcome["notes"])


@pytest.mark.parametrize(("caught", "kind"), [("ImportError", "environment"), ("Exception", "returned")])
def test_a_function_that_does_without_torch_if_it_is_missing_does_not_hide_it(desk: Desk, caught: str, kind: str):
    desk.torch("2.13.0+cpu", "None")

    outcome = desk.run(BROAD.format(caught), 1)

    assert outcome["kind"] == kind
    assert "a build without CUDA" in outcome["message"] + "".join(outcome["notes"])


def test_fewer_gpus_than_the_job_has_are_refused(desk: Desk):
    outcome = desk.run(IMPORTS, 2)

    assert outcome["kind"] == "environment"
    assert "this job asked for 2 GPUs, and PyTorch 2.7.1+cu118" in outcome["message"]
    assert outcome["message"].endswith("sees 1 of them")


def test_a_function_may_hide_gpus_from_itself(desk: Desk):
    hides = "def f():\n    import os\n    os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n    import torch\n    return 1\n"

    assert desk.run(hides, 2)["kind"] == "returned"


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return 1\n",
        "def f():\n    from importlib.util import find_spec\n    return find_spec('torch').origin\n",
    ],
)
def test_a_torch_that_is_not_used_is_not_asked_for_its_build(desk: Desk, source: str):
    desk.torch("2.13.0+cpu", "None")

    outcome = desk.run(source, 1)

    assert (outcome["kind"], outcome["notes"]) == ("returned", [])


def test_torchs_module_is_as_if_nobody_had_looked(desk: Desk):
    source = (
        "def f():\n    import inspect, torch\n    from importlib.machinery import SourceFileLoader as Loader\n"
        "    kinds = {type(torch.__loader__), type(torch.__spec__.loader)}\n"
        "    return 1 / (kinds == {Loader} and 'version' in inspect.getsource(torch))\n"
    )

    assert desk.run(source, 1)["kind"] == "returned"


def test_imports_by_torch_itself_are_not_watched(desk: Desk):
    desk.torch("2.7.1+cu118", "'11.8'", CUDA + "import sys\nFINDERS = sys.meta_path[:]\n")
    source = (
        "def f():\n    import sys\n    watch, = [x for x in sys.meta_path if type(x).__module__.endswith('devices')]\n"
        "    import torch\n    return 1 / (watch not in torch.FINDERS + sys.meta_path)\n"
    )

    assert desk.run(source, 1)["kind"] == "returned"


def test_who_forgot_to_ask_for_a_gpu_learns(desk: Desk):
    outcome = desk.run(IMPORTS, 0)

    assert outcome["kind"] == "returned"
    assert [note for note in outcome["notes"] if note.startswith("this job has no GPU")], outcome["notes"]
