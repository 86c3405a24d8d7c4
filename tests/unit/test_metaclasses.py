"""Values whose metaclass has an equality or hash of its own: they are shown, counted, scored and compared as others."""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping
from typing import Any

import pytest

from clusterfn.bridge.attributes import has_method, is_a
from clusterfn.calls import map_display
from clusterfn.calls.group_state import ItemOutcome
from clusterfn.display import labels
from clusterfn.packing.dependencies import as_lists
from clusterfn.sweeps.run import Scoring


def refuse(*_: object) -> Any:
    raise ValueError("what are these?")


ODD: Mapping[str, dict[str, Any]] = {
    "compares nothing": {"__eq__": refuse, "__hash__": type.__hash__},
    "has no hash": {"__eq__": lambda cls, other: cls is other},
    "hashes nothing": {"__hash__": refuse},
    "takes all for equal": {"__eq__": lambda cls, other: True, "__hash__": lambda cls: 7},
}


@pytest.fixture(params=ODD.values(), ids=ODD)
def below(request: pytest.FixtureRequest) -> Any:
    """Return a function that makes a class below a base, with the metaclass."""
    metaclass: Any = type("Meta", (abc.ABCMeta,), request.param)
    return lambda base=object: metaclass("Odd", (base,), {"__repr__": base.__repr__})


def test_it_is_shown_counted_and_scored_as_its_base(below: Any):
    table, number, half = below(dict)(a=1), below(int)(3), below(float)(0.5)
    assert [labels.shown(each) for each in (number, table, [below()()])] == ["3", "{'a': 1}", "[Odd]"]
    assert labels.columns("x", table) == {"x": "{'a': 1}", "x.a": 1}
    assert (labels.plain(number), labels.plain(half)) == (3, 0.5)

    result = below(dict)(score=half)
    assert Scoring().of(result) == 0.5 and Scoring("loss").lacks(result)
    assert map_display.result_in_words(ItemOutcome("done", result)) == "✓ 0.5, 0.0s"


def test_one_kind_is_not_taken_for_another_that_is_equal_to_it(below: Any):
    asked = [below(dict)(), below(list)(), below(str)(), below()()]

    assert [is_a(each, Mapping) for each in asked] == [True, False, False, False]


def test_a_map_takes_it_as_a_list(below: Any):
    kind = type(below())("Rows", (), {"__iter__": lambda self: iter([1, 2])})

    assert [list(each) for each in as_lists([kind()], "f")] == [[1, 2]]


def test_what_a_metaclass_can_do_its_objects_cannot() -> None:
    red: Any = enum.Enum("Color", "RED").RED  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"give map\(\) a list"):
        as_lists([red], "f")
    assert has_method([], "__len__") and not has_method(red, "__len__")
