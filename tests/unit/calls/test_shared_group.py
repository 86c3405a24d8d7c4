"""A map on several hosts without a host: who gets which items, and what the whole says of what its parts report."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from clusterfn.calls import shared_group
from clusterfn.calls.conclusion import GIVEN_UP_ITEM, WITHDRAWN_ITEM
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.shared_group import Load, Parts, PartState
from clusterfn.errors import Cancelled, HostError, Unreachable
from clusterfn.hosts.rpc.link import ConnectionState

GIVEN_UP = ItemOutcome("CANCELLED", None, Cancelled(GIVEN_UP_ITEM.message))


@pytest.mark.parametrize("seed", range(200))
def test_items_go_to_the_quickest_host_that_has_nothing_left_and_works_if_there_is_one(seed):
    chance = random.Random(seed)
    loads = [Load(*chance.choices([True, False], k=3), chance.choice([0.0, 1.0, 5.0]), 1.0) for _ in range(4)]

    idle = [load for load in loads if load.is_there and load.works and load.is_idle]
    assert not idle or max(loads).per_s == max(load.per_s for load in idle)


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
    assert a.status == "RETURNED (2 of 2 ended: 2 returned)"
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


NO_ANSWER, NO_FOLDER = Unreachable("no answer"), FileNotFoundError("the working directory")


@pytest.mark.parametrize(
    ("link", "then", "error", "state"),
    [
        ("connected", "connected", NO_ANSWER, "DIED"), ("connected", "connected", NO_FOLDER, "DIED"),
        ("connected", "reconnecting", NO_ANSWER, "PENDING"), ("closed", "closed", NO_ANSWER, "DIED"),
        ("reconnecting", "", NO_FOLDER, "PENDING"), ("waiting", "", NO_FOLDER, "PENDING"),
    ],
)  # fmt: skip
def test_what_was_given_up_waits_for_a_host_and_ends_if_it_cannot_be_sent(parts, monkeypatch, link, then, error, state):
    _, b = parts
    moves, connection = b.parts, SimpleNamespace(link=SimpleNamespace(state=ConnectionState(link, 0.0)))
    for part in parts:
        moves.add(SimpleNamespace(group=part, host=SimpleNamespace(is_connected=True, connection=connection)))

    def notes(_: object) -> list[str]:
        connection.link.state = ConnectionState(then, 0.0)
        raise error

    monkeypatch.setattr(shared_group, "notes", notes)
    b.end_item(3, GIVEN_UP)
    moves.given_up_at = float("-inf")

    moves.move_some()
    moves.move_some()

    assert moves.whole.states[3] == state
    assert (3 in moves.given_up, moves.given_up_at > float("-inf")) == (state == "PENDING",) * 2


def test_a_host_that_is_gone_ends_what_it_had_and_what_runs_elsewhere_goes_on(parts):
    a, b = parts
    a.end_item(0, ItemOutcome("RETURNED", 10))
    moved = b.with_items_again([1], "3" * 16, "")

    a.fail(HostError("a has been gone"))
    b.end_item(2, ItemOutcome("RETURNED", 12))
    b.end_item(3, ItemOutcome("DIED", None, HostError("b could not go on")))

    assert list(a.parts.whole.failed) == [3] and a.parts.whole.states[1] == "PENDING"
    moved.fail(HostError("b has been gone"))
    moved.end_item(1, GIVEN_UP)  # its host has come back
    assert not b.parts.given_up
    assert list(a.parts.whole.failed) == [1, 3] and a.parts.whole.done()
    assert a.parts.whole.ended(1).error.message == "b has been gone"
