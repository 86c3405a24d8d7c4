"""A cell in a job: its values, and what it displays, without IPython there."""

from __future__ import annotations

import sys
import types

import pytest

from clusterfn.hosts import serialization

cell = serialization.part("cell")


@pytest.fixture(autouse=True)
def main(monkeypatch):
    """A `__main__` of its own."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.delenv("MPLBACKEND", raising=False)
    return module


def run(source, values=None, wanted=()):
    return cell.run_cell("\n" + source, "<cell 3>", values or {}, wanted)


class Rich:
    def _repr_html_(self):
        return "<b>rich</b>"

    def _repr_png_(self):
        return b"png", {"width": 3}

    def _repr_latex_(self):
        raise RuntimeError("no latex")

    def __repr__(self):
        return "plain"


def test_named_values_come_back_and_those_that_were_not_set_are_named():
    told = run("y = x + 1\nif x > 5:\n    z = 1", {"x": 2}, ("y", "z", "x"))

    assert told == {"values": {"y": 3, "x": 2}, "missing": ["z"], "shown": []}


def test_the_last_value_and_displays_appear_once_in_their_order():
    told = run("display(1, r)\nfor n in [2]: display(n)\n[r]", {"r": Rich()})

    rich = {"text/plain": "plain", "text/html": "<b>rich</b>", "image/png": "cG5n"}
    assert told["shown"] == [{"text/plain": "1"}, rich, {"text/plain": "2"}, {"text/plain": "[plain]"}]


@pytest.mark.parametrize("source", ["1 + 1;", "x = 1", "None", "display()", "# nothing\n"])
def test_what_a_notebook_does_not_show_is_not_shown(source):
    assert run(source)["shown"] == []


def test_a_cell_may_await_in_its_body_and_in_its_last_line():
    told = run(
        "import asyncio\nasync def late(x):\n    await asyncio.sleep(0)\n    return x\n"
        "task = asyncio.ensure_future(late(1))\nfirst = await late(2)\n[first, await task]",
        wanted=("first",),
    )

    assert told == {"values": {"first": 2}, "missing": [], "shown": [{"text/plain": "[2, 1]"}]}
    with pytest.raises(ZeroDivisionError) as raised:
        run("import asyncio\nawait asyncio.sleep(0)\n1 / 0")
    assert raised.traceback[-1].lineno == 3


def test_an_exception_names_the_line_of_the_cell_and_keeps_what_was_displayed():
    with pytest.raises(ZeroDivisionError) as caught:
        run("display('before')\ndef f(x):\n    return 1 / x\n\nf(0)")

    exceptions = serialization.part("exceptions")
    told = exceptions.summary(caught.value)["traceback"]
    assert '"<cell 3>", line 6, in <module>\n    f(0)' in told
    assert '"<cell 3>", line 4, in f\n    return 1 / x' in told and "in run_cell" not in told
    rebuilt = exceptions.from_records(exceptions.to_records(caught.value))
    assert getattr(rebuilt, cell.SHOWN) == [{"text/plain": "'before'"}]


def test_a_cell_is_the_main_module_where_pickle_finds_its_classes(main):
    told = run("import pickle\nclass A: pass\nsame = type(pickle.loads(pickle.dumps(A()))) is A", wanted=("same",))

    assert told["values"] == {"same": True} and main.A.__module__ == "__main__"
