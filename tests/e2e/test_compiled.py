"""A package of the user's own with a compiled extension: used in place here, elsewhere left to the environment."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
import mine_fast, beside_it
import clusterfn
from clusterfn import cluster

@cluster(host=sys.argv[1])
def pushed(heap):
    mine_fast.push(heap, 1)
    return heap, mine_fast.__file__

assert "mine_fast" not in dir(beside_it)
assert pushed([2]) == ([1, 2], mine_fast.__file__)
with clusterfn.Session(sys.argv[1], cores=1) as session:
    assert session.call(mine_fast.pushed, [3]) == [1, 3]
print(json.dumps("whole"))
"""


@pytest.fixture
def extension(tmp_path: Path) -> Path:
    """A package beside the script that was built in place, and a module of the script's own that imports it."""
    spec = importlib.util.find_spec("_heapq")
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        pytest.skip("this Python has no compiled module in a file")
    package = tmp_path / "mine_fast"
    package.mkdir()
    shutil.copy(spec.origin, package)
    (package / "__init__.py").write_text(
        "from ._heapq import heappush as push\n\n\ndef pushed(heap):\n    push(heap, 1)\n    return heap\n"
    )
    (tmp_path / "beside_it.py").write_text("def f():\n    import mine_fast\n")
    return package


def test_it_is_used_in_place_on_this_machine(here, extension, run_script):
    assert run_script(SCRIPT, "here") == "whole"
