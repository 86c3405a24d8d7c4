"""What a supervisor on another node says of its end, what its launch leaves, and which ends `requeue=` names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

from clusterfn.bridge.layout import LOST, PREEMPTED, RAISED, TIME
from clusterfn.bridge.supervisor import retries
from clusterfn.bridge.supervisor.nodes import NodeAttempt, Others
from clusterfn.bridge.supervisor.verdict import EXIT_LEFT_TO_AFTER, Verdict


@pytest.mark.parametrize("asked", [True, False])
def test_a_job_that_was_asked_to_end_on_another_node_is_not_retried_and_may_be_requeued(
    tmp_path: Path, asked: bool
) -> None:
    job: Any = SimpleNamespace(
        id="7f3a", shared=SimpleNamespace(number=1), nodes=str(tmp_path / "nodes"), rank=1, tasks=(2, 1), node="n02",
        scheduler=SimpleNamespace(has_nodes=True), spec={"requeue": {retries.PREEMPTION: 3}},
    )  # fmt: skip
    first: Any = SimpleNamespace(number=1, path=lambda name: str(tmp_path / name), words_of_tasks=list)
    others = Others(job, first, [])
    others.ranks = [1]

    NodeAttempt(job).publish(Verdict(LOST, "ended by SIGTERM", stage="supervisor", node="n02", asked=asked))
    failed = others.failure()

    assert failed is not None and "n02" in failed.message
    assert retries.passes(failed) is not asked
    assert retries.cause_of(job, failed) == (retries.PREEMPTION if asked else "")


# Its helper is `sleep` before it ends: a process that has just been forked still has its parent's name.
LAUNCHER_THAT_ENDS_FIRST = """
import os, sys, time
from types import SimpleNamespace
from clusterfn.bridge.agent import libc
from clusterfn.bridge.supervisor import nodes, process_tree

HELPED = "sleep 150 & until grep -q sleep /proc/$!/comm; do :; done"
folder = sys.argv[1]
libc.become_subreaper()
launches = SimpleNamespace(launch_command=lambda *_: ["sh", "-c", HELPED])
job = SimpleNamespace(folder=folder, spec={"resources": {"cores": 1}, "bridge": folder}, scheduler=launches)
attempt = SimpleNamespace(number=1, words_of_tasks=list, path=lambda name: os.path.join(folder, name))
others = nodes.Others(job, attempt, [])
others.start(1, 2)
os.waitpid(others.launcher_pid, 0)
print(*map(process_tree.name_of, others.processes()))
process_tree.end(lambda: sorted(others.processes()), lambda: None)
print(others.processes())
"""


def test_what_a_launcher_leaves_for_a_moment_is_not_left_behind_by_the_function(tmp_path: Path):
    """Srun has a helper process, which ends after it."""
    said = subprocess.run(
        [sys.executable, "-c", LAUNCHER_THAT_ENDS_FIRST, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
    )  # fmt: skip

    helper, left = said.stdout.splitlines()
    assert helper.startswith("sleep ") and len(helper.split(" (")) == 2
    assert left == "set()"


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
    for has_nodes, cause in ((True, on_node), (False, without_scheduler)):
        job: Any = SimpleNamespace(scheduler=SimpleNamespace(has_nodes=has_nodes))
        job.spec = {"requeue": {"timeout": 1, "preempted": 1, "node": 1}}
        assert retries.cause_of(job, verdict) == cause
        job.spec = {"requeue": None}
        assert retries.cause_of(job, verdict) == ""


def test_a_job_that_was_requeued_often_enough_ends_for_what_ended_it():
    ended = [retries.exhausted(verdict, 2).kind for verdict in (Verdict(PREEMPTED), UNEXPLAINED, Verdict(TIME))]

    assert ended == ["taken_back", "lost", "time"]
