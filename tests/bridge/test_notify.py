"""The command at the end of a job: run once, by whoever comes first."""

from __future__ import annotations

import json

from clusterfn.bridge.supervisor import notify
from tests.bridge.host import Bench


def test_it_is_reported_once_and_what_failed_is_said_where_jobs_are_listed(bench: Bench, tmp_path):
    """A group says what its items came to, and not how long one of them took."""
    told = tmp_path / "told"
    group = {"count": 2, "chunk": 1, "per_element": None, "element_s": None, "aim_s": None, "elements": 1}
    job = bench.ended(scheduler="slurm", group=group)
    outcome = job.folder / "attempts" / "1" / "outcome.json"
    outcome.write_text(json.dumps({**job.outcome(), "message": "2 of 2 ended"}))
    command = f"(cat; echo $CLUSTERFN_JOB_STATE) >>'{told}'; exit 1"
    (job.folder / "notify").write_text(json.dumps({"command": command, "after_s": 0.0}))

    for _ in range(2):
        notify.tell_end(str(job.folder))
    assert told.read_text() == f"f ({job.id[:4]}) on test has returned: 2 of 2 ended\nRETURNED\n"
    assert not (job.folder / "notify").exists()
    why = "the notification failed: the command ended with status 1"
    assert why in bench.listed()[job.id]["message"]


def test_a_job_that_has_not_ended_is_not_reported(bench: Bench, tmp_path):
    job = bench.job("def f():\n    return 1\n")
    (job.folder / "notify").write_text(json.dumps({"command": f"touch '{tmp_path}/said'"}))

    notify.tell_end(str(job.folder))

    assert not (tmp_path / "said").exists() and not (job.folder / "notified.json").exists()
