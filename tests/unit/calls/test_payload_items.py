"""Many calls as bytes: the function once, each item apart, and what they share once."""

from __future__ import annotations

import json
import threading
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import pytest

from clusterfn.calls import outcome
from clusterfn.calls.job import Job
from clusterfn.calls.job_run import OutputSource
from clusterfn.display import labels
from clusterfn.errors import PayloadError
from clusterfn.hosts import serialization
from clusterfn.packing import payload_items
from clusterfn.packing.dependencies import Place
from tests.fakes.taken import run


def test_each_item_is_small_and_independent(tmp_path):
    packed = payload_items.pack(lambda a, b: a, [(n, str(n)) for n in range(2000)])
    path = tmp_path / "items.pkl"
    path.write_bytes(packed.data)
    begins = [0, *packed.ends]

    load = serialization.part("container").load
    for n in (0, 1, 1999):
        assert load(str(path), str, None, (begins[n], begins[n + 1] - begins[n])) == (n, str(n))
    assert len(packed.data) < 2000 * 300 and len(packed.ends) == 2000


def test_what_items_share_is_one_blob():
    shared = bytes(3 << 20)
    packed = payload_items.pack(lambda data, n: n, [(shared, n) for n in range(50)])

    assert [len(view) for view in packed.payload.blobs.values()] == [3 << 20]
    assert len(packed.data) < 50 * 1000


def test_large_arguments_of_one_size_keep_their_own_content():
    large = [bytes([n]) * (3 << 20) for n in range(3)]
    packed = payload_items.pack(lambda data: data, [(each,) for each in large])

    assert sorted(map(bytes, packed.payload.blobs.values())) == large


def test_an_item_that_cannot_travel_is_named():
    with pytest.raises(PayloadError, match=r"item 3 cannot be sent: args\[1\]\['lock'\]"):
        payload_items.pack(lambda a, b: a, [(n, {"lock": threading.Lock()} if n == 3 else {}) for n in range(5)])


def test_a_table_of_arguments_names_them_as_the_function_does():
    def train(lr, model, /, *layers, epochs=1): ...

    calls = [(0.5, "mlp", 3, Fraction(1, 2)), (True, None, [1])]

    assert labels.argument_table(train, calls, {"epochs": 10}) == [
        {"lr": 0.5, "model": "mlp", "layers_0": 3, "layers_1": "1/2", "epochs": 10},
        {"lr": True, "model": None, "layers_0": "[1]", "epochs": 10},
    ]
    assert labels.argument_table(max, [(1, 2)], {}) == [{"argument_0": 1, "argument_1": 2}]


class Ended(Job[Any]):
    """A job whose value is here."""

    def done(self) -> bool:
        return True


def test_the_host_knows_whose_values_each_item_takes_and_what_all_of_them_take():
    def job(name: str, kind: type[Job[Any]] = Job) -> Job[Any]:
        return kind(run(f"{name}{'0' * 12}", "there"), OutputSource())

    one, two, constant, old = job("aaaa"), job("bbbb"), job("cccc"), job("dddd", Ended)
    place = Place("there", "/root")
    packed = payload_items.pack(total, [(one, [one["loss"], two]), (5, old)], None, {"key": constant}, place)

    told = json.loads(packed.described_inputs())
    assert told == {"all": [[constant.id, None]], "items": [[[one.id, None], [two.id, None]], [[old.id, None]]]}
    assert set(packed.payload.after) == {one.id, two.id, constant.id, old.id}


def total(*values: Any, key: Any = None) -> Any:
    return values


THERE, BELOW = "/root/files/aa/model1.zip", "/root/files/bb/data"
GIVEN = {THERE: PurePath("model1.zip"), BELOW: PurePath("/home/ada/data")}


@pytest.mark.parametrize(
    ("value", "mine"),
    [
        (THERE, "model1.zip"),
        (PurePosixPath(THERE), Path("model1.zip")),
        ({THERE: 1, "other": [THERE]}, {"model1.zip": 1, "other": ["model1.zip"]}),
        (({THERE}, frozenset([THERE])), ({"model1.zip"}, frozenset(["model1.zip"]))),
        (f"{BELOW}/a/b.csv", str(PurePath("/home/ada/data/a/b.csv"))),
        (f"{BELOW}2/a", f"{BELOW}2/a"),
        (f"read {THERE}", f"read {THERE}"),
        ([1, None, b"x"], [1, None, b"x"]),
    ],
)
def test_a_path_of_an_argument_in_a_value_is_the_callers_again(value, mine):
    assert outcome.with_own_paths(value, GIVEN) == mine


def test_a_list_that_holds_itself_stays_that_list():
    value = [THERE]
    value.append(value)

    found = outcome.with_own_paths(value, GIVEN)

    assert found is value and found[1] is value and found[0] == "model1.zip"
