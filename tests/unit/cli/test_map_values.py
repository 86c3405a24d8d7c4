"""`clusterfn result` and `attach` of a map of which items failed or were cancelled; no host is asked."""

from __future__ import annotations

import json

import pytest

from clusterfn import Cancelled
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.cli import main, output

STOPPED = ItemOutcome("CANCELLED", None, Cancelled("stopped on request"))
RAISED = ItemOutcome("RAISED", None, ValueError("no luck"))


@pytest.fixture
def ended(monkeypatch):
    def end(*ends: ItemOutcome) -> None:
        known = GroupState("7f3a000011112222", "train", "lab8", "/root/jobs/7f3a", len(ends))
        for index, each in enumerate(ends):
            known.end_item(index, each)
        monkeypatch.setattr(output, "find", lambda *_, **__: JobGroup(known))

    return end


def test_a_map_that_was_cancelled_prints_its_values_and_says_how_many_it_has_not(ended, capsys):
    ended(ItemOutcome("RETURNED", "a"), STOPPED, RAISED)

    assert main(["result", "7f3a"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "['a', <cancelled>, <ValueError: no luck>]\n"
    assert printed.err.endswith(
        "clusterfn: 7f3a train on lab8 was cancelled: 2 of 3 items have no value; "
        "clusterfn logs 7f3a shows what each item printed\n"
    )


def test_json_has_the_error_in_the_place_of_a_value_and_attach_leaves_with_one(ended, capsys):
    ended(ItemOutcome("RETURNED", 1), RAISED)

    assert main(["result", "7f3a", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [1, {"error": {"type": "ValueError", "message": "no luck"}}]
    assert main(["attach", "7f3a"]) == 1
    ended(ItemOutcome("RETURNED", 1), ItemOutcome("RETURNED", 2))
    assert main(["attach", "7f3a"]) == 0


@pytest.mark.parametrize("command", ["result", "attach"])
@pytest.mark.parametrize(
    ("end", "said"),
    [
        (STOPPED, "Cancelled: train was cancelled before any of its 2 items returned\n"),
        (RAISED, "next:  clusterfn logs 7f3a shows what each item printed\n"),
    ],
)
def test_a_map_without_any_value_says_so_in_words_of_the_command_line(ended, command, end, said, capsys):
    ended(end, end)

    assert main([command, "7f3a"]) == 1
    printed = capsys.readouterr()
    assert said in printed.err and "group." not in printed.err and printed.out == ""
