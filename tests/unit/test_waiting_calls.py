"""The table of calls that wait for a host (tests/e2e/test_waits.py) has every public one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pytest

from clusterfn import ClusterFunction, Executor, Job, JobGroup, Session
from clusterfn.cli.parser import make_parser
from tests.fixtures.waiting_call import calls_on

CALLS = calls_on("host", "", "")
# They ask a person, or the way to a host and not the host: tests/contract/test_login.py and tests/unit/cli/init.
ASK_A_PERSON = {"init", "trust", "login", "logout"}
ASK_NO_HOST = {"demo", "hosts", "config", "completion", "kernel add", "kernel list", "kernel remove"}
AS_ANOTHER = {
    "stop": "cancel", "env show": "env list", "env verify": "env list", "env remove": "env gc",
    "group.cancel": "group.stop",
}  # fmt: skip
FACTS = {
    "job": "id name host folder state status status_since reason notes since done running cancelled add_done_callback "
    "set_result set_exception set_running_or_notify_cancel",
    "group": "id name host folder outputs_to done failed state states reason status label to_dataframe",
    "Session": "job",
    "f": "local on with_options options",
}


def commands(parser: argparse.ArgumentParser, before: str = "") -> Iterator[str]:
    """Every command, with those that have commands of their own in their place."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not found:
        yield before.strip()
    for action in found:
        for name, each in action.choices.items():
            yield from commands(each, f"{before} {name}")


def test_every_command_that_asks_a_host_is_in_the_table() -> None:
    named = {AS_ANOTHER.get(name, name) for name in commands(make_parser())} - ASK_NO_HOST - ASK_A_PERSON

    assert {f"clusterfn {name}" for name in named} <= {call.removesuffix(" -f") for call in CALLS}


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
