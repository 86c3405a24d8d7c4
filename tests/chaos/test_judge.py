"""The judge of the storm finds each kind of wrong in made-up records, and none in true ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.judge import INVENTED, LOST, REFUSED, TWICE, Ask, Fate, judged, judged_groups

ASK = Ask(7, size=8)
FINE = Fate("j", ASK, "here", told=ASK.value(), ends=[{"kind": "returned"}], runs=["j/1"])
DIED: dict[str, Any] = {"error": {"type": "KilledBySignal", "text": "SIGKILL"}}
OWN: dict[str, Any] = {"error": {"type": "ValueError", "text": "call 7 fails on purpose"}}
SUBMIT: dict[str, Any] = {"error": {"type": "SubmitError", "text": "Unable to contact slurm controller"}}


def ended(kind: str, told: dict[str, Any] | None, **more: Any) -> Fate:
    return replace(FINE, ends=[{"kind": kind}], told=told, **more)


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
    ],
)
def test_each_kind_of_wrong_is_found(fate: Fate, wrong: str) -> None:
    assert kinds(fate) == [wrong]


def test_a_map_may_lose_as_many_items_as_processes_were_killed() -> None:
    items = [replace(FINE, name=f"g#{index}", hit={"worker": 1}) for index in range(3)]
    died = [replace(each, ends=[{"kind": "signal"}], told=DIED) for each in items]
    assert judged_groups([*items[:2], died[2]]) == []
    assert [wrong.kind for wrong in judged_groups([items[0], *died[1:]])] == [INVENTED]
