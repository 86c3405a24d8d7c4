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


class ComparesNothing(abc.ABCMeta):
    def __eq__(cls, other: object) -> bool:
        raise ValueError("what are these?")

    __hash__ = type.__hash__


class HasNoHash(type):
    def __eq__(cls, other: object) -> bool:
        return cls is other


class HashesNothing(type):
    def __hash__(cls) -> int:
        raise ValueError("no hash")


class TakesAllForEqual(type):
    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 7


METACLASSES: list[Any] = [ComparesNothing, HasNoHash, HashesNothing, TakesAllForEqual]


@pytest.fixture(params=METACLASSES, ids=lambda each: each.__name__)
def below(request: pytest.FixtureRequest) -> Any:
    """Return a function that makes a class below a base, with the metaclass."""
    return lambda base=object: request.param("Odd", (base,), {"__repr__": base.__repr__})


def test_its_label_is_that_of_the_base(below: Any):
    assert labels.shown(below(int)(3)) == "3"
    assert labels.shown(below(dict)(a=1)) == "{'a': 1}"
    assert labels.shown([below()]) == "[Odd]"


def test_a_table_and_a_small_value_know_it(below: Any):
    assert labels.columns("x", below(dict)(a=1)) == {"x": "{'a': 1}", "x.a": 1}
    assert labels.plain(below(int)(3)) == 3
    assert labels.plain(below(float)(0.5)) == 0.5


def test_its_score_is_found(below: Any):
    result = below(dict)(score=below(float)(0.5))

    assert Scoring().of(result) == 0.5
    assert map_display.result_in_words(ItemOutcome("done", result)) == "✓ 0.5, 0.0s"
    assert Scoring("loss").lacks(result)


def test_one_kind_is_not_taken_for_another_that_is_equal_to_it(below: Any):
    asked = [below(dict)(), below(list)(), below(str)(), below()()]

    assert [is_a(each, Mapping) for each in asked] == [True, False, False, False]


def test_a_map_takes_it_as_a_list(below: Any):
    kind = type(below())("Rows", (), {"__iter__": lambda self: iter([1, 2])})

    assert [list(each) for each in as_lists([kind()], "f")] == [[1, 2]]


class Color(enum.Enum):
    """A class that can be iterated, whose members cannot."""

    RED = 1


def test_what_a_metaclass_can_do_its_objects_cannot() -> None:
    with pytest.raises(TypeError, match=r"give map\(\) a list"):
        as_lists([Color.RED], "f")  # type: ignore[list-item]
    assert has_method([], "__len__") and not has_method(Color.RED, "__len__")
