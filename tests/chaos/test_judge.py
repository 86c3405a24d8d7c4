"""The judge of the storm finds each kind of wrong in made-up records, and none in true ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.judge import INVENTED, LOST, REFUSED, TWICE, WITHDRAWN, Ask, Fate, judged, judged_groups
from tests.chaos.parts import ends_of_items, parts_of

ASK = Ask(7, size=8)
FINE = Fate("j", ASK, "here", told=ASK.value(), ends=[{"kind": "returned"}], runs=["j/1"])
DIED: dict[str, Any] = {"error": {"type": "KilledBySignal", "text": "SIGKILL"}}
GIVEN_UP: dict[str, Any] = {"error": {"type": "Cancelled", "text": "the item was withdrawn before it started"}}
AWAY: dict[str, Any] = {"error": {"type": "Unreachable", "text": "storm-other has been gone"}}
OWN: dict[str, Any] = {"error": {"type": "ValueError", "text": "call 7 fails on purpose"}}
SUBMIT: dict[str, Any] = {"error": {"type": "SubmitError", "text": "Unable to contact slurm controller"}}


def ended(kind: str, told: dict[str, Any] | None, **more: Any) -> Fate:
    return replace(FINE, ends=[{"kind": kind}], told=told, **more)


def withdrawn(told: dict[str, Any] | None, runs: Sequence[str] = (), **more: Any) -> Fate:
    return ended(WITHDRAWN, told, name="j#3", runs=runs, **more)


def kinds(fate: Fate) -> list[str]:
    return [wrong.kind for wrong in judged(fate)]


@pytest.mark.parametrize(
    ("fate", "wrong"),
    [
        (replace(FINE, ends=[]), LOST),
        (replace(FINE, ends=[], told=None), LOST),
        (replace(FINE, told=None), LOST),
        (replace(FINE, told={"error": {"type": "ResultError"}}), LOST),
        (replace(FINE, ends=[], told=SUBMIT, runs=[]), LOST),
        (replace(FINE, ends=[], told=SUBMIT, on_slurm=True, beside=frozenset(["slurmctld"])), LOST),
        (replace(FINE, ends=[{"kind": "returned"}] * 2), INVENTED),
        (replace(FINE, name="j#3", ends=[{"kind": "returned"}, {"kind": "lost"}]), INVENTED),
        (replace(FINE, told=replace(ASK, number=8).value()), INVENTED),
        (replace(FINE, told={**ASK.value(), "sum": 0}), INVENTED),
        (replace(FINE, runs=[]), INVENTED),
        (ended("signal", DIED), INVENTED),
        (ended("signal", DIED, hit={"supervisor": 1}), INVENTED),
        (ended("signal", ASK.value(), hit={"worker": 1}), INVENTED),
        (ended("lost", {"error": {"type": "WorkerLost"}}, beside=frozenset(["slurmd"])), INVENTED),
        (ended("cancelled", {"error": {"type": "Cancelled"}}, on_slurm=True, beside=frozenset(["slurmd"])), INVENTED),
        (ended("raised", OWN), INVENTED),
        (ended("raised", {"error": {"type": "ValueError"}}, ask=replace(ASK, ending="raises")), INVENTED),
        (replace(FINE, runs=["j/1", "j/2"]), TWICE),
        (replace(FINE, runs=["j/1", "j/1"], ask=replace(ASK, retries=2)), TWICE),
        (replace(FINE, name="j#3", runs=["j/1", "j/1"]), TWICE),
        (replace(FINE, ends=[], told=None, taken=False), REFUSED),
        (withdrawn(GIVEN_UP), LOST),
        (withdrawn(None, orphaned=True), LOST),
        (withdrawn(GIVEN_UP, orphaned=True, runs=["p/1"]), INVENTED),
        (withdrawn(ASK.value(), orphaned=True), INVENTED),
        (replace(FINE, name="j#3", runs=["p/1", "q/1"]), TWICE),
    ],
)
def test_each_kind_of_wrong_is_found(fate: Fate, wrong: str) -> None:
    assert kinds(fate) == [wrong]


def test_a_map_may_lose_as_many_items_as_processes_were_killed() -> None:
    items = [replace(FINE, name=f"g#{index}", hit={"worker": 1}) for index in range(3)]
    died = [replace(each, ends=[{"kind": "signal"}], told=DIED) for each in items]
    assert judged_groups([*items[:2], died[2]]) == []
    assert [wrong.kind for wrong in judged_groups([items[0], *died[1:]])] == [INVENTED]


def test_an_item_that_no_host_has_any_more_ends_by_the_death_of_its_client_or_says_why_it_was_not_sent() -> None:
    assert kinds(withdrawn(GIVEN_UP, orphaned=True)) == kinds(withdrawn(AWAY)) == []


def test_the_parts_of_a_map_are_found_and_their_items_counted_as_the_whole_counts_them(tmp_path: Path) -> None:
    def lay(root: str, name: str, files: dict[str, Any], ends: dict[int, str]) -> None:
        folder = tmp_path / root / "jobs" / name
        lines = "".join(json.dumps({"index": index, "kind": kind}) + "\n" for index, kind in ends.items())
        for path, content in {**files, "elements/1/attempts/1/journal.jsonl": lines + '{"ind\n'}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content if isinstance(content, str) else json.dumps(content))

    first, second, third = "a" * 12 + "0003", "a" * 12 + "0004", "b" * 16
    shared = [["x", first, 2], ["y", second, 2]]
    x, y = {"host": "x", "shared": shared}, {"host": "y", "shared": shared}
    lay("one", first, {"spec.json": x, "more/000002-" + third: ""}, {0: "raised"})
    lay("one", third, {"spec.json": x, "retried.json": {"items": [3]}}, {0: "exited"})
    lay("two", second, {"spec.json": y, "elements/1/moved.json": ""}, {0: "cancelled", 1: "cancelled"})

    parts = parts_of([tmp_path / "one", tmp_path / "two", tmp_path / "none"], "a" * 12, 4)

    assert [(part.folder.name, part.host, part.items) for part in parts] == [
        (first, "x", [0, 1]), (second, "y", [2, 3]), (third, "x", [3])
    ]  # fmt: skip
    found = {index: [(part.host, end["kind"]) for part, end in ends] for index, ends in ends_of_items(parts).items()}
    assert found == {0: [("x", "raised")], 2: [("y", WITHDRAWN)], 3: [("x", "exited")]}
