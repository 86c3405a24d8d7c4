"""What stands for parts of the standard library in a job's supervisor behaves as they do."""

from __future__ import annotations

import collections
import contextlib
import json
import pickle
import runpy
from typing import Any

import pytest

from clusterfn.bridge import fast_start

FIELDS = ("job", "place", "kind")
OURS = fast_start.namedtuple("OURS", FIELDS, defaults=("gpu",))
THEIRS = collections.namedtuple("THEIRS", FIELDS, defaults=("gpu",))


@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None, True], "b": {}}, "é\ud800\n", 10**30, float("-inf"), [], OURS(1, 2), {1: (2, "x")}]
)
def test_a_value_is_written_and_read_as_by_json(value: Any):
    assert fast_start.dumps(value) == json.dumps(value)
    assert fast_start.loads(fast_start.dumps(value)) == json.loads(json.dumps(value))


@pytest.mark.parametrize("text", ['{"a": 1}\n', ' {"a": 1}', "[1] \t\n", '"\\u00e9\\ud800"', "-Infinity"])
def test_text_around_a_value_is_allowed_as_by_json(text: str):
    assert fast_start.loads(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{", "{} x", "[1,]", "nope", "\ufeff{}", '"\n"', "1 2"])
def test_what_is_no_json_is_refused_in_the_same_words(text: str):
    with pytest.raises(ValueError) as theirs:
        json.loads(text)
    with pytest.raises(type(theirs.value)) as ours:
        fast_start.loads(text)

    assert str(ours.value) == str(theirs.value)


def test_what_json_cannot_write_is_refused():
    circle: list[Any] = []
    circle.append(circle)

    with pytest.raises(TypeError, match="Object of type set is not JSON serializable"):
        fast_start.dumps({"a": {1}})
    with pytest.raises(ValueError, match="Circular reference"):
        fast_start.dumps(circle)


def test_a_python_whose_half_in_c_asks_for_more_settings_loads_json_itself(monkeypatch: pytest.MonkeyPatch):
    def make_scanner(_: object) -> None:
        raise AttributeError("array_hook")

    monkeypatch.setattr("_json.make_scanner", make_scanner)
    loaded = runpy.run_path(fast_start.__file__)

    assert loaded["loads"](loaded["dumps"]({"a": [1]})) == {"a": [1]}


def test_a_named_tuple_is_as_that_of_collections():
    ours, theirs = OURS("7f3a", place=2), THEIRS("7f3a", place=2)

    assert ours == theirs == ("7f3a", 2, "gpu")
    assert (ours.job, ours.place, ours.kind, ours._fields) == (theirs.job, theirs.place, theirs.kind, theirs._fields)
    assert ours._asdict() == theirs._asdict()
    assert ours._replace(kind="cpu") == theirs._replace(kind="cpu")
    assert repr(ours) == repr(theirs).replace("THEIRS", "OURS")
    assert pickle.loads(pickle.dumps(ours)) == ours and OURS.__module__ == __name__
    for wrong in ((), (1,), (1, 2, 3, 4)):
        with pytest.raises(TypeError):
            OURS(*wrong)


def test_only_these_errors_are_suppressed():
    for suppress in (fast_start.suppress, contextlib.suppress):
        with suppress(OSError, ValueError):
            raise FileNotFoundError
        with pytest.raises(KeyError), suppress(OSError):
            raise KeyError
