"""Short texts of values: which call is meant, whatever its arguments are."""

from __future__ import annotations

import argparse
import datetime
import enum
import time
import types
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pytest

import clusterfn
from clusterfn.display import labels

numpy = pytest.importorskip("numpy")
attrs = pytest.importorskip("attrs")
pydantic = pytest.importorskip("pydantic")


@dataclass
class Optimizer:
    name: str = "adam"
    lr: float = 0.1


@dataclass
class Config:
    lr: float
    depth: int = 3
    optimizer: Optimizer = field(default_factory=Optimizer)
    secret: str = field(default="hidden", repr=False)


class Point(NamedTuple):
    x: int
    y: int


@attrs.define
class OfAttrs:
    lr: float


class Model(pydantic.BaseModel):
    lr: float


class Plain:
    def __init__(self, lr: float) -> None:
        self.lr = lr
        self._cache = object()


class Mode(str, enum.Enum):
    FAST = "fast"


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Estimator:
    def __repr__(self) -> str:
        return "Estimator(depth=3,\n          lr=0.1)"


def relu(x: float) -> float:
    return x


A_VALUE_IS = [
        (0.1, "0.1"), (None, "None"), ("adam", "'adam'"), (True, "True"), (3 + 2j, "(3+2j)"),
        (numpy.float32(0.1), "0.1"), (numpy.int64(3), "3"), (numpy.bool_(True), "True"), (numpy.str_("a"), "'a'"),
        (Decimal("0.10"), "0.10"), (Fraction(1, 2), "1/2"), (datetime.date(2026, 11, 26), "2026-11-26"),
        (Path("data/a/x.csv"), "data/a/x.csv"), (b"ab", "b'ab'"), (range(3), "range(0, 3)"),
        ((1, 2), "(1, 2)"), ((1,), "(1,)"), ([64, 64], "[64, 64]"), ({3, 1}, "{1, 3}"), ({}, "{}"), (set(), "set()"),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, … 94 more]"),
        ({"lr": 0.1}, "{'lr': 0.1}"), ({1: "a"}, "{1: 'a'}"), ({"a": {"b": [1]}}, "{'a': {'b': [1]}}"),
        (Optimizer(), "Optimizer(name='adam', lr=0.1)"), (Point(1, 2), "Point(x=1, y=2)"),
        (OfAttrs(0.5), "OfAttrs(lr=0.5)"),
        (Model(lr=0.5), "Model(lr=0.5)"), (Plain(0.5), "Plain(lr=0.5)"), (Mode.FAST, "Mode.FAST"),
        (types.SimpleNamespace(lr=1), "SimpleNamespace(lr=1)"), (argparse.Namespace(lr=1), "Namespace(lr=1)"),
        (numpy.zeros((1000, 3)), "ndarray(1000, 3)"), (numpy.arange(3), "[0, 1, 2]"),
        (relu, "relu"), (Optimizer, "Optimizer"),
        (object(), "object"), (Broken(), "Broken"), ([Broken()], "list"), (Estimator(), "Estimator(depth=3, lr=0.1)"),
        ("x" * 99, "'" + "x" * 38 + "…"), ("\x1b[2J", r"'\x1b[2J'"),
    ]  # fmt: skip


def test_a_value_is_shown_by_what_is_in_it():
    for value, text in A_VALUE_IS:
        assert labels.shown(value) == text


class Empty:
    """Stands for nothing yet, as a proxy may."""

    @property
    def __class__(self) -> Any:
        raise LookupError("nothing")


@dataclass
class Derived:
    lr: float = 0.1
    most: Any = field(init=False)

    @property
    def loss(self) -> float:
        raise RuntimeError("not trained")


Derived.most = Derived.loss


@pytest.mark.parametrize("make", [Empty, lambda: [Empty()], lambda: object.__new__(Derived)])
def test_a_value_whose_own_code_raises_is_one_all_the_same(make: Any):
    value = make()
    row = [("x", value)]

    assert labels.opened(row)[0] is value
    assert len(labels.labels([row, [("x", 1)]])) == 2
    assert labels.leaves("x", value)
    assert labels.plain(value)


def test_a_number_of_too_many_digits_is_shown_by_its_type():
    assert labels.shown(10**5000) == "int"


def test_a_value_that_contains_itself_is_shown():
    nested: list[Any] = []
    nested.append(nested)

    assert labels.shown(nested) == "[[[[list]]]]"


def rows(*values: Any) -> list[list[tuple[str, Any]]]:
    return [[("", value), ("", "the same for all of these many calls")] for value in values]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (rows(Config(0.1), Config(0.2)), ["lr=0.1", "lr=0.2"]),
        (
            rows(Config(0.1, optimizer=Optimizer("sgd")), Config(0.1, optimizer=Optimizer("adam", 0.5))),
            ["optimizer.name='sgd', optimizer.lr=0.1", "optimizer.name='adam', optimizer.lr=0.5"],
        ),
        (rows({"lr": 0.1, "n": 1}, {"lr": 0.2, "n": 1}), ["lr=0.1", "lr=0.2"]),
        (rows({"lr": 0.1}, {"lr": 0.1, "warm": True}), ["", "warm=True"]),
        (rows(*(Path("/scratch/ada/projects/ice/data/2026", f"{name}.csv") for name in "ab")), ["…/a.csv", "…/b.csv"]),
        (rows("x" * 99 + "1", "x" * 99 + "2"), ["…x1'", "…x2'"]),
        (rows(1, 2), ["1", "2"]),
        (rows(1, 1), ["1, 'the same for all of these many call…"] * 2),
        ([[("lr", 0.1), ("data", "x" * 50)], [("lr", 0.2), ("data", "x" * 50)]], ["lr=0.1", "lr=0.2"]),
    ],
)
def test_what_is_too_long_is_named_by_what_differs(calls: Any, expected: list[str]):
    assert labels.labels(calls) == expected


def test_what_is_short_is_shown_whole():
    assert labels.labels([[("", 0.1), ("", "adam")], [("", 0.2), ("", "adam")]]) == ["0.1, 'adam'", "0.2, 'adam'"]
    assert labels.labels([labels.row_of(None, (0.1,), {"epochs": 3})]) == ["0.1, epochs=3"]
    (text,) = labels.labels([labels.row_of(None, (Config(0.1), "x" * 50))])
    assert text.startswith("Config(lr=0.1, depth=3, optimizer=Opt")


def test_a_table_has_a_column_for_each_field():
    assert labels.columns("cfg", Config(0.1)) == {
        "cfg": "Config(lr=0.1, depth=3, optimizer=Optimizer(name='adam', lr=0.1))",
        "cfg.lr": 0.1, "cfg.depth": 3, "cfg.optimizer.name": "adam", "cfg.optimizer.lr": 0.1,
    }  # fmt: skip
    assert labels.columns("x", numpy.float64(0.5)) == {"x": 0.5}
    assert labels.columns("x", None) == {"x": None}
    assert labels.columns("x", [1, 2]) == {"x": "[1, 2]"}


def test_the_text_of_a_secret_is_in_no_label():
    given = {"token": "geheim", "cfg": {"api_key": "geheim", "max_tokens": 5, "tokenizer": "bpe"}}

    for text in labels.labels([list(given.items()), [("token", "geheim2")]], most=20):
        assert "geheim" not in text
    whole = "token='***', cfg={'api_key': '***', 'max_tokens': 5, 'tokenizer': 'bpe'}"
    assert labels.labels([list(given.items())], 200) == [whole]
    assert labels.columns("password", "geheim") == {"password": "***"}
    assert "geheim" not in str(labels.columns("cfg", given["cfg"]))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("train.py --lr 0.1 --token abc -v", "train.py --lr 0.1 --token *** -v"),
        ("train.py --hf_token='a b' --api-key \"c d\"", "train.py --hf_token=*** --api-key ***"),
        ("API_KEY=abc train.py +logger.wandb.key=abc", "API_KEY=*** train.py +logger.wandb.key=***"),
        ("env 'PASSWORD=a b' train.py --secret abc|cat", "env 'PASSWORD=***' train.py --secret ***|cat"),
        (
            "curl -H 'Authorization: Bearer abc' https://ada:abc@x.org",
            "curl -H 'Authorization: ***' https://ada:***@x.org",
        ),
        ('train.py \'{"token": "abc", "lr": 1}\'', 'train.py \'{"token": "***", "lr": 1}\''),
        ("train.py --token {token} {password} {lr}", "train.py --token *** *** {lr}"),
    ],
)
def test_a_command_is_shown_without_what_it_calls_a_secret(command, text):
    assert labels.without_secrets(command) == text


@pytest.mark.parametrize(
    "command",
    ["train.py --max-tokens 5 --tokenizer x --key-size 5 --monkey 3", "train.py --token $TOKEN --key=\"$KEY\"",
     "train.py --token --verbose", "python key.py token abc", "ssh ada@x.org"],
)  # fmt: skip
def test_what_is_no_secret_of_a_command_is_shown(command):
    assert labels.without_secrets(command) == command


def test_a_long_command_is_read_in_a_moment():
    began = time.process_time()
    for part in ("a.b-", "https://", "--token ", "'", "key"):
        labels.without_secrets(part * 20_000)

    assert time.process_time() - began < 5


def test_values_of_a_command_have_its_places_for_words_and_no_quotes():
    command = clusterfn.command("train --lr {lr} --data {data}")
    rows = [labels.row_of(command, [lr, PurePath("a b")]) for lr in ("1e-3", 1e-4)]

    assert labels.labels(rows) == ["lr=1e-3, data=a b", "lr=0.0001, data=a b"]
    assert labels.labels([labels.row_of(command, (), {"lr": "x"}), labels.row_of(len, ("x",))]) == ["lr=x", "'x'"]
