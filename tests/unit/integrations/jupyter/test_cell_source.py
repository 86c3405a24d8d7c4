"""What a cell reads and sets, and what is rejected before anything is sent."""

from __future__ import annotations

import json

import pytest

from clusterfn.errors import ConfigError
from clusterfn.integrations.jupyter.cell_magic import check_names, names_in

CELL = """
import numpy as np, os.path
def f(x):
    global counted
    counted = x
    return [helper(y) for y in data] + [np.sum(x), undefined]
class A:
    size = scale
    def g(self): return size
result, (a, *b) = f(3), other
for i in range(3): pass
with open("x") as file: print(display(i))
"""


def test_the_names_that_a_cell_reads_and_sets():
    found = names_in(CELL, "<cell>")

    assert found.reads == {"helper", "data", "undefined", "scale", "size", "other"}
    assert found.sets == {"np", "os", "f", "A", "counted", "result", "a", "b", "i", "file"}
    assert found.is_certain and not names_in("from math import *", "<cell>").is_certain


def test_what_only_the_notebook_has_is_rejected_with_how_to_pass_it():
    notebook = {"data": 1, "helper": len, "js": json, "scale": 2, "unused": 3}

    with pytest.raises(ConfigError) as caught:
        check_names(names_in("data, helper, js, scale, undefined", "<cell>"), ("scale",), (), notebook)

    assert "the cell uses data, helper, js, which exist only in the notebook" in str(caught.value)
    assert "send variables: -i data -i helper; import modules in the cell: import json as js" in str(caught.value)


def test_an_output_that_the_cell_never_sets_is_rejected():
    with pytest.raises(ConfigError, match="the cell never sets 'reslut'; did you mean result?"):
        check_names(names_in("result = 1", "<cell>"), (), ("reslut",), {})
    check_names(names_in("from x import *", "<cell>"), (), ("anything",), {})
    check_names(names_in("data.sort()", "<cell>"), ("data",), ("data",), {"data": []})
