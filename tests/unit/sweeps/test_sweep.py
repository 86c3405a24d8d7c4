"""What a sweep decides without a host: which configurations, what they are worth, and what is said."""

from __future__ import annotations

import itertools
import random

import pytest
from IPython.core.formatters import DisplayFormatter

from clusterfn.sweeps import scoring, space
from clusterfn.sweeps.report import SweepResult, Trial

RETRIEVAL = {
    "embedder": ["e5", "bge", "gte", "minilm", "splade"],
    "index": ["flat", "ivf", "hnsw"],
    "pipeline": ["reranker_only", "reranker_then_splade", "vector_only"],
    "k": [1, 5, 10],
}


def names(chosen):
    return [each.name for each in chosen]


# which configurations


def test_a_grid_is_the_product_in_the_order_written():
    chosen = space.choose(space.read(RETRIEVAL), "grid", None, 0)

    assert len(chosen) == 135
    assert [tuple(each.values.values()) for each in chosen] == list(itertools.product(*RETRIEVAL.values()))
    assert names(chosen)[::67] == ["GRID_0000", "GRID_0067", "GRID_0134"]


@pytest.mark.parametrize("seed", [0, 1, 2026])
def test_a_capped_sample_has_exactly_that_many_in_grid_order_and_the_same_for_the_same_seed(seed):
    grid = space.read(RETRIEVAL)

    chosen = space.choose(grid, "grid", 3, seed)

    assert names(chosen) == names(space.choose(space.read(RETRIEVAL), "grid", 3, seed))
    assert names(chosen) == [f"GRID_{index:04d}" for index in sorted(random.Random(seed).sample(range(135), 3))]
    assert [each.values for each in chosen] == [grid.at(int(each.name[5:])) for each in chosen]


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_a_grid_of_any_size_is_never_built(sampler, keys=30):
    grid = space.read({f"key{number}": range(10) for number in range(keys)})

    chosen = space.choose(grid, sampler, 4, 7)

    assert grid.size == 10**keys and len(set(names(chosen))) == 4
    assert all(len(each.name) == 5 + keys for each in chosen)


def test_random_sampling_takes_the_order_of_the_draws_and_functions_that_draw():
    lists = space.choose(space.read(RETRIEVAL), "random", 5, 3)
    drawn = space.choose(space.read({"lr": lambda chance: chance.uniform(1, 2), "m": ["ab"]}), "random", 3, 3)

    assert names(lists) == [f"GRID_{index:04d}" for index in random.Random(3).sample(range(135), 5)]
    assert names(drawn) == ["RANDOM_0000", "RANDOM_0001", "RANDOM_0002"]
    assert all(1 <= each.values["lr"] <= 2 and each.values["m"] == "ab" for each in drawn)


def test_a_list_of_dicts_is_taken_as_it_is():
    chosen = space.choose(space.read([{"lr": 1}, {"lr": 2, "m": "a"}]), "grid", None, 0)

    assert [(each.name, each.values) for each in chosen] == [
        ("GRID_0000", {"lr": 1}),
        ("GRID_0001", {"lr": 2, "m": "a"}),
    ]


# what results are worth


@pytest.mark.parametrize(
    ("by", "value", "score"),
    [
        (None, 0.5, 0.5),
        (None, {"score": 2}, 2.0),
        ("loss", {"loss": 0.1, "score": 3}, 0.1),
        (lambda value: value[-1], [1, 7], 7.0),
        (None, float("inf"), float("inf")),
    ],
)
def test_a_score_is_a_number_a_key_or_what_a_function_says(by, value, score):
    assert scoring.Scoring(by).of(value) == score


@pytest.mark.parametrize(
    ("by", "value", "says"),
    [
        (None, float("nan"), "the score is nan"),
        (None, {"loss": 1, "acc": 2}, r"no 'score' among \['acc', 'loss'\]"),
        ("loss", {"loss": None}, "'loss' is None"),
        (None, None, "it is None"),
        (None, True, "it is True"),
        (None, "0.5", "it is '0.5'"),
        (lambda value: None, 3, "score= returned no number for 3"),
    ],
)
def test_a_result_without_a_score_says_why(by, value, says):
    with pytest.raises(ValueError, match=says):
        scoring.Scoring(by).of(value)


def test_ranking_keeps_the_order_of_equals():
    scores = [("a", 1.0), ("b", 3.0), ("c", 3.0), ("d", 2.0)]

    assert scoring.ranked(scores, minimize=False) == ["b", "c", "d", "a"]
    assert scoring.ranked(scores, minimize=True) == ["a", "d", "b", "c"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"score": 1, "scores": [1, 2.5]}, (1.0, 2.5)), ([1, 2], (1.0, 2.0)), ([1], ()), ("ab", ()), (3, ()),
        ({"scores": [1, "x"]}, ()),
    ],
)  # fmt: skip
def test_the_scores_of_a_result_are_found(value, found):
    assert scoring.sequence(value) == found


# what is said, in the words and with the numbers of the reports


def report():
    trials = [
        Trial("GRID_0007", {"pipeline": "vector_only"}, 0.439, 0.439, seconds=44.0, scores=(0.4, 0.478)),
        Trial("GRID_0029", {"pipeline": "reranker_then_splade"}, 0.610, 0.610, seconds=43.8, scores=(0.6, 0.62)),
        Trial("GRID_0071", {"pipeline": "reranker_only"}, 0.651, 0.651, seconds=45.2, scores=(0.6, 0.702)),
    ]
    return SweepResult(trials, False, 1, group_by="pipeline")


def test_a_cell_shows_of_a_sweep_what_printing_it_does():
    trials = [Trial(f"GRID_000{n}", {"lr": n / 10}, score=n / 10, seconds=1.5) for n in (1, 3, 2)]
    trials.append(Trial("GRID_0004", {"lr": 9.0}, error=ValueError("\x1b[2Jno")))
    shown, _ = DisplayFormatter().format(SweepResult(trials, minimize=False, seed=None))

    lines = shown["text/plain"].splitlines()
    assert lines[0] == "3/4 configurations completed (75 %)" and lines[1] == "1. GRID_0003 0.300 lr=0.3"
    assert lines[-1] == "✗ GRID_0004 ValueError: no"


def test_the_report_names_at_most_five_causes_with_their_configurations():
    causes = ["a"] * 12 + ["b", "c", "d", "d", "e", "f", "g"]
    trials = [Trial(f"G{n:02d}", {}, error=ValueError(each)) for n, each in enumerate(causes)]

    assert str(SweepResult(trials, False, 1)).splitlines()[1:] == [
        "✗ 12 x ValueError: a (G00, G01, G02, G03, G04, G05, G06, G07, …)",
        "✗ 2 x ValueError: d (G14, G15)",
        "✗ G12 ValueError: b",
        "✗ G13 ValueError: c",
        "✗ G16 ValueError: e",
        "✗ and 2 other causes",
    ]
