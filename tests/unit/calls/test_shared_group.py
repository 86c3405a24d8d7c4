"""A map on several hosts without a host: who gets which items, and what the whole says of what its parts report."""

from __future__ import annotations

import random

import pytest

from clusterfn.calls.conclusion import GIVEN_UP_ITEM, WITHDRAWN_ITEM
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.shared_group import Load, Parts, PartState, next_giver, shares
from clusterfn.errors import Cancelled, HostError

GIVEN_UP = ItemOutcome("CANCELLED", None, Cancelled(GIVEN_UP_ITEM.message))


@pytest.mark.parametrize("seed", range(100))
def test_shares_are_all_of_the_items_and_near_the_weights(seed):
    chance = random.Random(seed)
    count, weights = chance.randrange(1, 500), [chance.choice([0, 1, 4, 8, 64]) for _ in range(4)] + [1]

    found = shares(count, weights)

    assert [item for own in found for item in own] == list(range(count))
    assert all(abs(len(own) - count * weight / sum(weights)) <= 1 for own, weight in zip(found, weights))


@pytest.mark.parametrize("seed", range(200))
def test_items_go_from_the_host_that_would_take_longest_to_one_that_has_nothing_left(seed):
    chance = random.Random(seed)
    loads = {}
    for name in "abcd":
        left = chance.choice([0, 0, 1, 7, 90])
        is_there, works = chance.choices([True, False], k=2)
        loads[name] = Load(is_there, works, not left, chance.choice([0.0, 1.0, 5.0]), left, chance.randint(0, left))

    giver, taker = next_giver(loads), max(loads, key=lambda name: loads[name])

    idle = [name for name, load in loads.items() if load.is_there and load.works and not load.left]
    givers = {name: load for name, load in loads.items() if load.is_there and load.waiting}
    assert (giver is None) == (not idle or not givers)
    if giver is not None:
        takes_s = {name: load.left / (load.per_s or 1e-9) for name, load in givers.items()}
        assert takes_s[giver] == max(takes_s.values())
        assert taker in idle and loads[taker].per_s == max(loads[name].per_s for name in idle)


@pytest.fixture
def parts() -> tuple[PartState, PartState]:
    """Those of a map of four items, two on each host."""
    shared = Parts(GroupState("1" * 16, "train", "a, b", "/root/jobs/1", 4))
    return PartState(shared, "1" * 16, "a", "", [0, 1]), PartState(shared, "2" * 16, "b", "", [2, 3])


def test_an_item_that_a_host_gave_up_ends_where_it_runs_next_and_nowhere_else(parts):
    a, b = parts
    whole = a.parts.whole
    a.begin_item(0)
    a.end_item(0, ItemOutcome("RETURNED", 10))
    a.end_item(1, ItemOutcome("RETURNED", 11))
    b.end_item(2, ItemOutcome("RETURNED", 12))
    b.end_item(3, GIVEN_UP)

    assert b.done() and whole.ended(3) is None and not whole.done()
    moved = a.with_items_again([3], "3" * 16, "")
    b.end_item(3, ItemOutcome("RETURNED", "twice"))
    moved.begin_item(3)
    assert whole.states[3] == "RUNNING" and a.parts.owner[3] is moved
    moved.end_item(3, ItemOutcome("RETURNED", 13))

    assert [whole.end_of(index, 0).value for index in range(4)] == [10, 11, 12, 13]
    assert whole.state == "RETURNED" and moved.done()


def test_what_was_given_up_is_cancelled_once_nothing_is_moved_and_what_was_withdrawn_at_once(parts):
    a, b = parts
    a.end_item(0, ItemOutcome("CANCELLED", None, Cancelled(WITHDRAWN_ITEM.message)))
    assert a.parts.whole.states[0] == "CANCELLED"
    b.end_item(3, GIVEN_UP)
    b.parts.close(lambda run: None)
    b.end_item(2, GIVEN_UP)

    assert b.parts.whole.states == ["CANCELLED", "PENDING", "CANCELLED", "CANCELLED"]


def test_a_host_that_is_gone_ends_what_it_had_and_what_runs_elsewhere_goes_on(parts):
    a, b = parts
    a.end_item(0, ItemOutcome("RETURNED", 10))
    moved = b.with_items_again([1], "3" * 16, "")

    a.fail(HostError("a has been gone"))
    b.end_item(2, ItemOutcome("RETURNED", 12))
    b.end_item(3, ItemOutcome("DIED", None, HostError("b could not go on")))

    assert list(a.parts.whole.failed) == [3] and a.parts.whole.states[1] == "PENDING"
    moved.fail(HostError("b has been gone"))
    assert list(a.parts.whole.failed) == [1, 3] and a.parts.whole.done()
    assert a.parts.whole.ended(1).error.message == "b has been gone"
