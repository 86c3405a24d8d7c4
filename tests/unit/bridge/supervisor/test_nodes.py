"""What a supervisor on another node says of its end, as the first one reads it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs run on hosts, which are no Windows machines")


@pytest.mark.parametrize("asked", [True, False])
def test_a_job_that_was_asked_to_end_on_another_node_is_not_retried_and_may_be_requeued(
    tmp_path: Path, asked: bool
) -> None:
    from clusterfn.bridge.layout import LOST
    from clusterfn.bridge.supervisor import requeue, retries
    from clusterfn.bridge.supervisor.nodes import NodeAttempt, Others
    from clusterfn.bridge.supervisor.verdict import Verdict

    job: Any = SimpleNamespace(
        id="7f3a", shared=SimpleNamespace(number=1), nodes=str(tmp_path / "nodes"), rank=1, tasks=(2, 1), node="n02",
        scheduler=SimpleNamespace(has_nodes=True), spec={"requeue": {requeue.PREEMPTION: 3}},
    )  # fmt: skip
    first: Any = SimpleNamespace(number=1, path=lambda name: str(tmp_path / name), words_of_tasks=list)
    others = Others(job, first, [])
    others.ranks = [1]

    NodeAttempt(job).publish(Verdict(LOST, "ended by SIGTERM", stage="supervisor", node="n02", asked=asked))
    failed = others.failure()

    assert failed is not None and "n02" in failed.message
    assert retries.passes(failed) is not asked
    assert requeue.cause_of(job, failed) == (requeue.PREEMPTION if asked else "")
