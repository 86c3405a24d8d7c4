"""The table of calls that wait for a host (tests/e2e/test_waits.py) has every public method.

That it has every command is proven in test_docs.py. Ctrl-C in such a call, and its errors, show the user's lines alone.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from clusterfn import ClusterFunction, Executor, Job, JobGroup, Session
from clusterfn.api.actor import Actor
from tests.fixtures.waiting_call import calls_on

CALLS = calls_on("host", "", "")
AS_ANOTHER = {"group.cancel": "group.stop"}
FACTS = {
    "job": "id name host folder state status status_since reason notes since done running cancelled add_done_callback "
    "set_result set_exception set_running_or_notify_cancel",
    "group": "id name host folder outputs_to done failed state states reason status label to_dataframe",
    "Session": "job",
    "f": "local on with_options options",
}
OF_EACH = pytest.mark.parametrize(
    ("name", "public"),
    [("job", Job), ("group", JobGroup), ("Session", Session), ("Executor", Executor), ("f", ClusterFunction)],
)


def asked_of(name: str, public: Any) -> set[str]:
    """The names of its methods that ask a host."""
    shown = public.__dir__(object.__new__(public))
    return {each for each in shown if not each.startswith("_")} - set(FACTS.get(name, "").split())


@OF_EACH
def test_every_method_that_asks_a_host_is_in_the_table(name: str, public: Any) -> None:
    made = tuple(call.replace("()", "") for call in CALLS)

    asked = {AS_ANOTHER.get(f"{name}.{each}", f"{name}.{each}") for each in asked_of(name, public)}
    assert [each for each in asked if not any(call.startswith(each) for call in made)] == []


@OF_EACH
def test_ctrl_c_in_every_method_that_asks_a_host_shows_no_frame_of_clusterfn(name: str, public: Any) -> None:
    assert [each for each in asked_of(name, public) if not hides_our_frames(inspect.getattr_static(public, each))] == []


@pytest.mark.parametrize("end", [Actor.__exit__, Executor.__exit__, Session.__exit__, Session.__aexit__])
def test_ctrl_c_at_the_end_of_a_block_shows_no_frame_of_clusterfn(end: object) -> None:
    assert hides_our_frames(end)


def hides_our_frames(method: Any) -> bool:
    """Whether it is a method, or a property, with the decorator `public_api`."""
    return "__tracebackhide__" in getattr(method, "fget", method).__code__.co_varnames
