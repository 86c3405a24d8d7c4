"""What the host answers when it is asked to conclude a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.calls import liveness
from clusterfn.calls.conclusion import parse_conclusion
from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.connection import Completed
from clusterfn.scheduler import scheduler_for
from tests.golden.golden import recorded
from tests.golden.samples import SLURM

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:3")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Completed(None, 9, b"", b""), "its program printed nothing and ended with signal 9"),
        (Completed(1, None, b"", b""), "its program printed nothing and ended with exit status 1"),
        (Completed(1, None, b"", b"No module named os"), "No module named os"),
    ],
)
def test_an_answer_that_cannot_be_read_is_the_evidence(answer: Completed, says: str) -> None:
    with pytest.raises(ClusterfnError, match="could not conclude the job") as rejected:
        parse_conclusion(answer, HOST, "/root/jobs/7f3a")

    assert list(rejected.value.evidence) == [says]


@pytest.mark.parametrize("folder", ["/root/jobs/{}", "/root/jobs/{}/elements/3"])
def test_what_the_scheduler_says_of_another_job_with_the_number_is_no_word_about_this_one(folder: str) -> None:
    """A controller that has lost its state gives numbers again."""
    own, line = "7f3a000011112222", recorded("slurm-22.05.8/scontrol-kill.txt").replace("FAILED", "RUNNING")
    tracker: Any = SimpleNamespace(
        session=SimpleNamespace(scheduler=scheduler_for(SLURM, {"user": "ada"})), folder=folder.format(own)
    )

    verdict = liveness.explain(tracker, line, "", "30")

    assert verdict is not None and "30 is another job now" in verdict.message
    assert liveness.explain(tracker, line.replace("kill.aaaa00000000000e", f"train.{own}"), "", "30") is None
