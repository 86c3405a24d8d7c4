"""`save_training` and `load_training`: whole or not at all, with the random numbers."""

from __future__ import annotations

import random
import sys
from unittest.mock import Mock

import pytest

from clusterfn import ClusterfnError, load_training, save_training


class Counter:
    """A part of a training that has a state."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_what_is_saved_is_loaded_with_the_random_numbers(tmp_path):
    path, counter = tmp_path / "last", Counter()
    assert load_training(path, counter=counter) == {}
    counter.count = 3
    save_training(path, counter=counter, step=7)
    expected, counter.count = random.random(), 0

    assert load_training(path, counter=counter) == {"step": 7}
    assert (counter.count, random.random()) == (3, expected)
    assert [each.name for each in tmp_path.iterdir()] == ["last"], "nothing is left aside"


def test_a_file_that_was_saved_without_torch_is_loaded_with_it(tmp_path, monkeypatch):
    path = save_training(tmp_path / "last", step=7)
    torch = Mock()
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert load_training(path) == {"step": 7}
    assert not torch.load.called


def test_a_part_that_was_not_saved_and_a_file_of_another_kind_are_named(tmp_path):
    path = save_training(tmp_path / "last", step=7)
    with pytest.raises(ClusterfnError, match="has no state of counter"):
        load_training(path, counter=Counter())
    with pytest.raises(ClusterfnError, match=r"epoch=…\) loads into an object, and this is a value: int"):
        load_training(tmp_path / "none", epoch=3)
    path.write_text("text")
    with pytest.raises(ClusterfnError, match="is no file of save_training"):
        load_training(path)


def test_a_save_that_fails_leaves_the_file_before_it(tmp_path):
    path = save_training(tmp_path / "last", step=1)
    with pytest.raises(Exception, match="pickle"):
        save_training(path, step=lambda: 0)
    assert load_training(path) == {"step": 1} and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("call", "name"), [(save_training, "save_training"), (load_training, "load_training")])
def test_a_part_without_a_name_is_rejected_with_how_to_name_it(call, name):
    with pytest.raises(TypeError, match=rf"^{name}\(\) takes each part by a name, as .* and not dict"):
        call({"model": 1})
