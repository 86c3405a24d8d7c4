"""What a sweep decides and rejects without a host: which configurations, what they are worth, and what is said."""

from __future__ import annotations

import itertools

import pytest
from IPython.core.formatters import DisplayFormatter

import clusterfn
from clusterfn import ConfigError, cluster
from clusterfn.sweeps import space
from clusterfn.sweeps.report import SweepResult, Trial
from clusterfn.sweeps.run import Scoring

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
    chosen = space.choose(space.read(RETRIEVAL), None, 0)

    assert len(chosen) == 135
    assert [tuple(each.values.values()) for each in chosen] == list(itertools.product(*RETRIEVAL.values()))
    assert names(chosen)[::67] == ["GRID_0000", "GRID_0067", "GRID_0134"]


@pytest.mark.parametrize("seed", [0, 1, 2026])
def test_a_capped_sample_has_exactly_that_many_in_grid_order_and_the_same_for_the_same_seed(seed):
    grid = space.read(RETRIEVAL)

    chosen = space.choose(grid, 3, seed)

    assert names(chosen) == names(space.choose(space.read(RETRIEVAL), 3, seed)) == sorted(names(chosen))
    assert len(set(names(chosen))) == 3 and names(chosen) != names(space.choose(grid, 3, seed + 1))
    assert [each.values for each in chosen] == [grid.at(int(each.name[5:])) for each in chosen]


def test_a_grid_of_any_size_is_never_built(keys=30):
    grid = space.read({f"key{number}": range(10) for number in range(keys)})

    chosen = space.choose(grid, 4, 7)

    assert grid.size == 10**keys and len(set(names(chosen))) == 4
    assert all(len(each.name) == 5 + keys for each in chosen)


def test_a_list_of_dicts_is_taken_as_it_is():
    chosen = space.choose(space.read([{"lr": 1}, {"lr": 2, "m": "a"}]), None, 0)

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
    assert Scoring(by).of(value) == score


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
        Scoring(by).of(value)


def test_ranking_keeps_the_order_of_equals():
    trials = [Trial(name, {}, score=score) for name, score in [("a", 1.0), ("b", 3.0), ("c", 3.0), ("d", 2.0)]]

    assert names(SweepResult(trials, minimize=False, seed=None).ranking) == ["b", "c", "d", "a"]
    assert names(SweepResult(trials, minimize=True, seed=None).ranking) == ["a", "d", "b", "c"]


# what is said, in the words and with the numbers of the reports


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


@cluster(host="local")
def train(lr, model="small"):
    return lr


@cluster(host="local")
def takes_all(**arguments):
    return arguments


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "small"}, r"model='small' is not a list of values\n  next:  write \['small'\]"),
        ({"lr": lambda chance: chance.random()}, "lr=<function .* is not a list of values"),
        ({"lr": 0.1}, r"lr=0.1 is not a list of values\n  next:  write \[0.1\]"),
        ({"lr": {1, 2}}, r"a set has no order.*\n  next:  write sorted\(lr\)"),
        ({"lr": []}, "lr has no values"),
        ({}, "the sweep has no arguments"),
        ([], "the sweep has no configurations"),
        ([{"lr": 1}, 2], "configuration 1 is 2, not a dict"),
        ({"learning rate": [1]}, "'learning rate' is not the name of an argument"),
        ("lr", "a dict of lists or a list of dicts"),
    ],
)
def test_what_is_no_grid_is_refused_with_a_hint(given, says):
    with pytest.raises(ConfigError, match=says):
        clusterfn.sweep(takes_all, given)


def test_a_grid_that_is_too_large_to_be_tested_whole_is_refused():
    with pytest.raises(ConfigError, match="1000000 configurations\n.*set how many"):
        clusterfn.sweep(takes_all, {f"key{number}": range(10) for number in range(6)})


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"max_configs": 0}, ConfigError, "max_configs=0"),
        ({"seed": [1]}, ConfigError, r"seed=\[1\] is not a whole number"),
        ({"seed": -1}, ConfigError, "seed=-1 is not"),  # would choose as 1 does
        (
            {"configurations": {"lr": [1, 2]}, "max_configs": 1, "resume": "7f3a"},
            ConfigError,
            r"needs the seed of the sweep\n  next:  give the seed=",
        ),
        ({"score": 3}, ConfigError, "score=3 is neither a key nor a function"),
        ({"configurations": {"rate": [1]}}, TypeError, r"train\(\) got an unexpected keyword argument 'rate'"),
        ({"configurations": {"model": ["a"]}}, TypeError, r"train\(\) missing 1 required positional argument: 'lr'"),
        ({"function": train.__wrapped__}, ConfigError, "decorated with @cluster"),
        ({"function": train.with_options(outputs=["*.pt"])}, ConfigError, "outputs= cannot be used with a sweep"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(options, error, says):
    given = {"function": train, "configurations": {"lr": [1]}, **options}

    with pytest.raises(error, match=says):
        clusterfn.sweep(**given)


def test_a_sweep_of_a_command_needs_a_file_with_its_score(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    without = clusterfn.command("python train.py --lr {lr}")
    for swept in (without, "python train.py --lr {lr}"):
        with pytest.raises(ConfigError) as caught:
            clusterfn.sweep(swept, {"lr": [0.1]})
        assert 'clusterfn.command("...", result="metrics.json")' in caught.value.hint
