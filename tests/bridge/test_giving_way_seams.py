"""Steps of an element that gives way, in the process of the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.layout import CLAIM, EXIT_QUEUED
from clusterfn.bridge.queue import admission, plan
from clusterfn.bridge.supervisor.items import ElementRun
from clusterfn.bridge.supervisor.verdict import AttemptEnded
from tests.bridge.box import waiting_name


def test_each_turn_is_good_for_one_item():
    element = ElementRun.__new__(ElementRun)
    element.job = SimpleNamespace(element=1, held=SimpleNamespace(yield_to_other_users=lambda first: True))

    element.written = 0
    element.give_way(0)
    element.written = 1
    with pytest.raises(AttemptEnded) as ended:
        element.give_way(0)
    assert ended.value.verdict.exit_status == EXIT_QUEUED


def test_no_claim_is_left_when_the_ticket_of_who_gives_way_is_written(tmp_path, monkeypatch):
    """A ticket with a claim is taken for one that is over."""
    claim = tmp_path / CLAIM
    claim.touch()
    stood: list[bool] = []
    spec = {"name": "f", "scheduler": "bare", "bridge": "", "queue_timeout_s": None}
    job: Any = SimpleNamespace(id="7f3a", folder=str(tmp_path), home=str(tmp_path), root=str(tmp_path), element=None)
    job.spec = {**spec, "resources": {"gpus": 1, "cores": 1, "memory_bytes": None}}
    names = {waiting_name(4242, 1): None}
    marks = SimpleNamespace(binders=lambda: names, hold=lambda name: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(admission, "Leases", lambda: marks)
    admitted: Any = admission.Admission(job)
    admitted.held = {"a card": None}
    monkeypatch.setattr(admitted.ticket.queue, "write", lambda told: stood.append(claim.exists()))
    monkeypatch.setattr(plan, "must_yield", lambda ticket, view: plan.LATER)

    assert admitted.yield_to_other_users(lambda: None)

    assert stood == [False]
