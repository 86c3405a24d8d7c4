"""What a sweep rejects before anything is sent."""

from __future__ import annotations

import pytest

import clusterfn
from clusterfn import ConfigError, cluster


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
