"""What is left of a machine, and cards that change hands because a stranger is on one."""

from __future__ import annotations

import pytest

from clusterfn.bridge.spooler import cards, names
from clusterfn.bridge.spooler.demand import Demand, Limits
from clusterfn.bridge.spooler.room import MEMORY, Machine, Room
from clusterfn.bridge.supervisor import nvidia


class Mark:
    def __init__(self, held: set[str], name: str) -> None:
        self._held, self._name = held, name
        held.add(name)

    def close(self) -> None:
        self._held.discard(self._name)


class Marks:
    """Names in a set."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    def hold(self, name: str) -> Mark | None:
        return None if name in self.held else Mark(self.held, name)


@pytest.mark.parametrize(("there", "available", "fits"), [(1000, 200, False), (1000, 400, True), (200, 400, False)])
def test_memory_is_bounded_by_what_is_there_and_by_what_is_available(there: int, available: int, fits: bool):
    room = Room(Machine(8, there, available), [], 1, Limits(None, None, None, None))

    assert room.lacks(Demand(0, 1, 300)) == ([] if fits else [MEMORY])


def test_a_card_that_a_stranger_uses_is_exchanged_for_one_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvidia, "used_by_others", lambda every: {uuid: "bob" for uuid in every if uuid == "a"})
    marks = Marks()
    held = cards.hold(marks, ["a", "b"], 2)  # type: ignore[arg-type]

    held = cards.unused(marks, held, ["a", "b", "c", "d"])  # type: ignore[arg-type]

    assert list(held) == ["b", "c"]
    assert marks.held == {names.gpu("b"), names.gpu("c")}


def test_where_a_stranger_leaves_too_few_none_is_held(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvidia, "used_by_others", lambda every: {uuid: "bob" for uuid in every if uuid == "a"})
    marks = Marks()

    with pytest.raises(cards.TooFew) as few:
        cards.unused(marks, cards.hold(marks, ["a", "b"], 2), ["a", "b"])  # type: ignore[arg-type]

    assert few.value.strangers == {"a": "bob"}
    assert not marks.held


def test_who_holds_a_card_is_said_only_where_the_jobs_that_run_let_it_be_known():
    seen = names.Seen(["gpu/a", "gpu/b", "run/1/x/2/1/0", "run/7/me/1/1/0"])
    assert seen.holders(["a", "b", "c"], (7, "me")) == {"a": 1, "b": 1}

    mixed = names.Seen(["gpu/a", "gpu/b", "run/1/x/1/1/0", "run/2/y/1/1/0"])
    assert sorted(mixed.holders(["a", "b"], (7, "me")).values()) == [1, 2]
    assert mixed.holders(["a"], (7, "me")) == {"a": -1}

    unknown = names.Seen(["gpu/a", "gpu/b", "run/1/x/1/1/0"])
    assert unknown.holders(["a", "b"], (7, "me")) == {"a": -1, "b": -1}
