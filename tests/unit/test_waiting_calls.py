"""The table of calls that wait for a host (tests/e2e/test_waits.py) has every public method.

That it has every command is proven in test_docs.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterfn import ClusterFunction, Executor, Job, JobGroup, Session
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


@pytest.mark.parametrize(
    ("name", "public"),
    [("job", Job), ("group", JobGroup), ("Session", Session), ("Executor", Executor), ("f", ClusterFunction)],
)
def test_every_method_that_asks_a_host_is_in_the_table(name: str, public: Any) -> None:
    shown = public.__dir__(object.__new__(public))
    names = {f"{name}.{each}" for each in shown if not each.startswith("_")}
    facts = {f"{name}.{each}" for each in FACTS.get(name, "").split()}
    made = tuple(call.replace("()", "") for call in CALLS)

    asked = {AS_ANOTHER.get(each, each) for each in names - facts}
    assert [each for each in asked if not any(call.startswith(each) for call in made)] == []
