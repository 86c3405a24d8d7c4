"""Values that a job takes of other jobs: which one of which file, once, and what is said where there is none."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn.hosts import serialization

container, references = serialization.part("container"), serialization.part("references")
JOB = "7f3a" * 4
FAILURE = {"name": "train", "message": "ValueError: no data", "kind": "raised"}


@pytest.fixture
def lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Say where the values of the items of a group are, all in one file; those that are None have failed."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.setenv(references.INPUTS_FILE, str(tmp_path / "inputs.json"))
    references.forget()

    def write(values: dict[int, Any], group: bool = True, lost: Any = None) -> Path:
        path, data, places = tmp_path / "values", b"x", {}
        for item, value in values.items():
            piece = b"" if value is None else b"".join(container.pack(value).pieces())
            places[str(item)] = [str(path), len(data), len(piece), FAILURE if value is None else None]
            data += piece
        path.write_bytes(data)
        about = {"name": "train", "folders": [str(tmp_path)], "lost": lost, "group": group, "places": places}
        (tmp_path / "inputs.json").write_text(json.dumps({JOB: about}))
        return path

    yield write
    references.forget()


def test_a_group_has_its_values_in_the_order_of_its_items_and_each_by_itself(lay: Any) -> None:
    lay({10: {"a": [10]}, 2: {"a": [2]}, 0: {"a": [0]}})

    assert references.value_of(JOB, 2, ("a", 0)) == 2
    assert references.value_of(JOB, None, ()) == [{"a": [0]}, {"a": [2]}, {"a": [10]}]
    assert references.value_of(JOB, 10, ()) == {"a": [10]}


def test_a_value_is_read_once_and_again_only_when_it_was_dropped(lay: Any) -> None:
    lay({0: [1]}, group=False)
    first = references.value_of(JOB, None, ())
    lay({0: [2]}, group=False)

    assert references.value_of(JOB, None, ()) is first
    references.forget()
    assert references.value_of(JOB, None, ()) == [2]


def test_what_has_no_value_says_why(lay: Any) -> None:
    path = lay({0: None, 1: {"a": 1}})
    with pytest.raises(references.InputUnavailable, match=r"^train \(7f3a\)\[0\] has no value: ValueError") as failure:
        references.value_of(JOB, 0, ())
    assert (failure.value.kind, failure.value.cause) == ("dependency", FAILURE)
    with pytest.raises(references.InputUnavailable, match=r"\['b'\]: KeyError") as absent:
        references.value_of(JOB, 1, ("b",))
    assert absent.value.kind == "payload"
    references.forget()
    path.unlink()
    with pytest.raises(references.InputUnavailable, match="was removed"):
        references.value_of(JOB, 1, ())


def test_a_group_of_which_items_were_lost_has_no_value(lay: Any) -> None:
    lay({0: [1]}, lost=FAILURE)
    with pytest.raises(references.InputUnavailable, match=r"^train \(7f3a\) has no value"):
        references.value_of(JOB, None, ())
