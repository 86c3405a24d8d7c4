"""For which ends `requeue=` has a word, on a node of a scheduler and on a machine without one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.layout import LOST, PREEMPTED, RAISED, TIME
from clusterfn.bridge.supervisor.verdict import EXIT_LEFT_TO_AFTER, Verdict

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs run on hosts, which are no Windows machines")

ASKED, UNEXPLAINED = Verdict(LOST, asked=True), Verdict(None, exit_status=EXIT_LEFT_TO_AFTER)


@pytest.mark.parametrize(
    ("verdict", "on_node", "without_scheduler"),
    [
        (Verdict(TIME), "timeout", "timeout"),
        (Verdict(PREEMPTED), "preempted", "preempted"),
        (ASKED, "preempted", "node"),
        (UNEXPLAINED, "", "node"),
        (Verdict(RAISED), "", ""),
    ],
)
def test_each_cause_counts_where_it_can_be_known(verdict: Verdict, on_node: str, without_scheduler: str):
    from clusterfn.bridge.supervisor import retries

    for has_nodes, cause in ((True, on_node), (False, without_scheduler)):
        job: Any = SimpleNamespace(scheduler=SimpleNamespace(has_nodes=has_nodes))
        job.spec = {"requeue": {"timeout": 1, "preempted": 1, "node": 1}}
        assert retries.cause_of(job, verdict) == cause
        job.spec = {"requeue": None}
        assert retries.cause_of(job, verdict) == ""
