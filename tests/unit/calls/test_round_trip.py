"""What a call may be made of, there and back in this process: each kind of function, class and object that cloudpickle
promises to send, through our own way of pickling. `calls/` sends the same to a process that has the bridge alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json.decoder
import math
import sqlite3
import sys
import textwrap
import types
from typing import Any

import pytest

from clusterfn import PayloadError
from tests.sent import called, sent


def main(source: str) -> Any:
    """The names of a script that was run as `__main__`, which a host does not have."""
    module = types.ModuleType("__main__")
    exec(compile(textwrap.dedent(source), "script.py", "exec"), vars(module))
    return module


# functions


def test_a_variable_of_a_closure_that_is_none_or_not_yet_there():
    nothing = None

    def empty():
        return later

    assert called(lambda: nothing) is None
    with pytest.raises(NameError, match="later"):
        sent(empty)()
    later = 1


def test_a_sentinel_of_a_module_that_is_loaded_again_is_that_module_s(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_sentinels.py").write_text("A, B = object(), object()\n")
    module = importlib.import_module("of_sentinels")
    for _ in range(4):
        kept = module.A  # else its successor gets its place in memory
        importlib.reload(module)
        assert sent((module.A, module.B)) == (module.A, module.B) and kept is not module.A


def test_globals_of_a_script_go_as_they_are_and_are_one_for_its_functions():
    script = main(
        """
        LEVEL = 1
        def up():
            global LEVEL
            LEVEL += 1
            return LEVEL
        def level():
            return LEVEL
        """
    )
    script.LEVEL = 5

    up, level = sent((script.up, script.level))
    assert (up(), level(), script.LEVEL) == (6, 6, 5)


def test_a_partial_that_holds_itself():
    made: Any = functools.partial(lambda **kwargs: None)
    made.keywords["me"] = made

    there = sent(made)
    assert there.keywords["me"] is there


@pytest.mark.parametrize("base", [object, types.ModuleType])
@pytest.mark.parametrize("module", ["_missing_module", None])
def test_a_module_that_raises_at_every_question_disturbs_no_other(base, module, monkeypatch):
    class Faulty(base):
        def __getattr__(self, name):
            raise RuntimeError(f"nobody asks me for {name}")

    monkeypatch.setitem(sys.modules, "_faulty_module", Faulty("_faulty_module") if base is not object else Faulty())
    unnamed = types.ModuleType("unnamed")
    unnamed.__name__ = None  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "_unnamed_module", unnamed)

    def works():
        return "it works"

    class Works:
        def does(self):
            return "it works"

    works.__module__ = Works.__module__ = Works.does.__module__ = module  # type: ignore[assignment]
    assert called(works) == called(Works().does) == "it works"


def test_a_module_that_cannot_go_is_named_where_it_is_sent():
    faulty = types.ModuleType("_faulty_module")
    faulty.connection = sqlite3.connect(":memory:")  # type: ignore[attr-defined]
    with contextlib.closing(faulty.connection), pytest.raises(PayloadError, match="(global|variable) faulty"):
        sent(lambda: faulty)


# classes


def test_an_object_whose_class_has_no_module_goes():
    assert type(sent(type("Made", (), {"__module__": None})())).__name__ == "Made"


def test_a_module_that_must_not_be_imported_hinders_no_object_of_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "json.decoder.none", None)
    kind = type("Unset", (), {"__module__": "json.decoder", "__qualname__": "Unset"})
    monkeypatch.setattr("json.decoder.Unset", kind, raising=False)
    monkeypatch.setattr("json.decoder.UNSET", kind(), raising=False)

    assert sent([json.decoder.UNSET])[0] is json.decoder.UNSET  # type: ignore[attr-defined]


def test_what_reduces_to_a_name_is_found_there(monkeypatch):
    class Single:
        def __reduce__(self):
            return "SINGLE"

    single = Single()
    monkeypatch.setattr(sys.modules[__name__], "SINGLE", single, raising=False)
    Single.__module__ = __name__
    assert sent(single) is single


# modules and other objects


def test_modules_go_by_name_and_those_made_by_hand_by_value():
    made = types.ModuleType("made_by_hand")
    exec("X = 1\ndef up():\n    global X\n    X += 1\n    return X\n", vars(made))

    there, up = sent((made, made.up))
    assert sent(math) is math and there.__name__ == "made_by_hand" and up() == 2 and there.up() == 3
    assert made.X == 1


def test_a_module_made_by_hand_that_is_found_by_its_name(monkeypatch):
    made = types.ModuleType("_made_and_found")
    exec("def f():\n    return 1\n", vars(made))
    monkeypatch.setitem(sys.modules, "_made_and_found", made)

    assert called(made.f) == 1


def test_a_figure_comes_without_its_place_in_pyplot(monkeypatch):
    """A figure of matplotlib tells in its state that pyplot shows it, which then shows it again where it is loaded."""

    class Figure:
        def __getstate__(self):
            return {"lines": 3, "_restore_to_pylab": True}

        def __setstate__(self, state):
            self.state = state

    module = types.ModuleType("matplotlib.figure")
    module.Figure = Figure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", module)

    assert sent(Figure()).state == sent(type("Mine", (Figure,), {})()).state == {"lines": 3}


def test_what_is_too_deep_is_refused_and_does_not_end_the_process():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(PayloadError):
        sent(deep)
