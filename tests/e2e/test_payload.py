"""Projects, modules and large arrays of a caller, on a host of Python 3.6. What a function may be: fixtures/calls."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn import PayloadError, cluster

pytestmark = pytest.mark.lab
on_box = cluster(host="tensor01")


def test_a_module_that_reads_a_file_beside_it_as_it_is_imported_is_named(hosts, tmp_path, monkeypatch):
    (tmp_path / "needs_root.py").write_text(
        "from pathlib import Path\nROOT = Path(__file__).with_suffix('.toml').read_text()\n\n\n"
        "def root():\n    return ROOT\n"
    )
    (tmp_path / "needs_root.toml").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(PayloadError) as caught:
        on_box(importlib.import_module("needs_root").root)()
    assert "importing needs_root fails there" in (caught.value.hint or "")


PROJECT = {
    "utils/__init__.py": "from .deep import twice\n",
    "utils/deep.py": "from .numbers import TWO\n\n\ndef twice(n):\n    return n * TWO\n",
    "utils/numbers.py": "TWO = 2\n",
    "utils/data.txt": "travelled",
    "alone.py": "import utils.deep\n\n\nclass Box:\n    def __init__(self, n):\n        self.n = utils.deep.twice(n)\n",
    "main.py": """
import json
from clusterfn import cluster
from alone import Box
from utils import twice
import late_use

@cluster(host="tensor01", cores=1)
def work(n):
    from pathlib import Path
    import utils
    from lazily import needed
    text = (Path(utils.__file__).parent / "data.txt").read_text()
    return Box(n), twice(n), text, needed(), late_use.chain(n)

box, number, text, lazily, chained = work(4)
print(json.dumps([type(box) is Box, box.n, number, text, lazily, chained]))
""",
    "lazily.py": "def needed():\n    return 'imported in the function'\n",
    "late_use.py": (
        "from clusterfn import cluster\n\n\n@cluster(host='tensor01')\ndef chain(n):\n    return end(n) + 1\n\n\n"
        "@cluster(host='slurm')\ndef end(n):\n    return n * 100\n"
    ),
}


def test_modules_and_packages_of_a_project(hosts, tmp_path):
    for name, text in PROJECT.items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(text)

    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path / "src", capture_output=True, text=True, timeout=150, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == '[true, 8, 8, "travelled", "imported in the function", 401]\n'


NUMPY = """
import json, sys
import numpy
import torch
from clusterfn import cluster

@cluster(host="tensor01", environment="python:" + sys.argv[1])
def work(array, scale):
    return array[:3] * scale, array.sum(), torch.arange(4).float() * scale, {"mask": array > 0}

array = numpy.arange(400_000, dtype=numpy.float64)
before = work.script(array, 2)
some, total, tensor, more = work(array, 2)
after = work.script(array, 2)
blobs = [[line for line in text.splitlines() if "/blobs/" in line] for text in (before, after)]
print(json.dumps([
    some.tolist(), float(total) == float(array.sum()), tensor.tolist(), str(tensor.device),
    int(more["mask"].sum()), str(some.dtype), [["there already" in line for line in lines] for lines in blobs],
]))
"""


def test_large_arrays_travel_beside_the_call_and_once(hosts, lab, run_script, installed, monkeypatch):
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the lab's PyTorch is for Python 3.11")
    packages = Path(pytest.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(packages)]))

    found = run_script(NUMPY, str(lab.torch_python), python=lab.torch_python)

    assert found[:2] == [[0.0, 2.0, 4.0], True]
    assert found[2:4] == [[0.0, 2.0, 4.0, 6.0], "cpu"]
    assert found[4:6] == [399_999, "float64"]
    assert found[6] == [[False], [True]]
