"""The arguments of a map: which are rejected before a host is looked for, and how long its lists may be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from clusterfn import ConfigError, Executor, cluster


@pytest.fixture
def no_file(monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said once a host is looked for."""
    monkeypatch.setenv("CLUSTERFN_CONFIG", "/nowhere/clusterfn.yml")
    return r"CLUSTERFN_CONFIG=/nowhere/clusterfn.yml is not a file"


@pytest.mark.parametrize("called", [lambda: cluster(abs).map(), lambda: list(Executor().map(abs))])
def test_a_map_of_nothing_is_refused_as_the_builtin_one_is(called: Callable[[], object]):
    with pytest.raises(TypeError, match=r"there is nothing to call abs with: give .* as map\(f, values\)"):
        called()


def learn(x: int, rate: float = 0.1) -> float:
    return x * rate


def add(a: int, b: int) -> int:
    return a + b


TIP = "'b'; each item is one argument: to pass its parts as arguments, call add.map(*zip(*items))"


@pytest.mark.parametrize(
    ("called", "kind", "says"),
    [
        (lambda: cluster(learn).map([1], [2], [3]), TypeError, "from 1 to 2 positional arguments but 3 were given"),
        (lambda: cluster(learn).map([1], x=2), TypeError, "multiple values for argument 'x'"),
        (lambda: cluster(learn).map([1], raet=0.2), ConfigError, "did you mean rate?"),
        (lambda: list(Executor().map(learn, [1], [2], [3])), TypeError, "but 3 were given"),
        (lambda: cluster(add).map([(1, 2), (3, 4)]), TypeError, TIP),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_rejected_before_a_host_is_opened(
    called: Callable[[], object], kind: type[Exception], says: str, no_file: str
):
    with pytest.raises(kind) as rejected:
        called()
    assert says in str(rejected.value)


def test_tuples_that_were_not_all_meant_as_arguments_get_no_tip(no_file: str):
    with pytest.raises(TypeError, match="argument: 'b'$"):
        cluster(add).map([(1, 2), (3, 4, 5)])


def test_a_map_of_a_number_is_refused_with_what_to_give():
    with pytest.raises(TypeError, match=r"10 is not iterable: give map\(\) a list, or range\(N\)"):
        cluster(abs).map(10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (([1, 2], ["a"]), "learn.map() got lists of different lengths: 2, 1; 1 call can be made"),
        (([1, 2], iter([0.1])), "got lists of different lengths: 2, an iterator; 1 call can"),
        ((range(3), (0.1, 0.2)), "lengths: 3, 2; 2 calls"),
        (([1], []), "lengths: 1, 0; 0 calls"),
    ],
)
def test_lists_of_different_lengths_are_rejected(lists: tuple[Any, ...], says: str, no_file: str):
    with pytest.raises(ConfigError) as rejected:
        cluster(learn).map(*lists)
    assert says in str(rejected.value)


@pytest.mark.parametrize(
    "lists", [([1, 2], itertools.repeat(0.1)), ([1, 2], itertools.count()), ([1, 2], (0.1 for _ in range(5)))]
)
def test_an_iterator_may_be_longer(lists: tuple[Any, ...], no_file: str):
    with pytest.raises(ConfigError, match=no_file):
        cluster(learn).map(*lists)


def test_a_map_of_an_empty_list_is_empty():
    assert cluster(abs).map([]).results() == []
