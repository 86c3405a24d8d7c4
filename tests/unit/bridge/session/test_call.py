"""A call of a session as a job: what is the session's, and what is its own."""

from __future__ import annotations

import importlib
import signal
from pathlib import Path

from clusterfn.bridge import session
from clusterfn.bridge.supervisor.classify_exit import classify_silence
from clusterfn.hosts import serialization

SPEC = {
    "id": "7f3a000011112222", "root": "/root", "scheduler": "bare",
    "resources": {"memory_bytes": 300 << 20, "time_s": 60.0, "gpus": 0},
}  # fmt: skip


def test_a_call_that_is_killed_for_memory_names_what_its_session_asked_for(tmp_path: Path):
    serialization.part("container")  # what a session's process has loaded before
    call = importlib.import_module(".call", session.__name__)
    job = call.CallJob(str(tmp_path), SPEC)

    verdict = classify_silence(signal.SIGKILL, "function", 290 << 20, job.asked_memory, "the kernel ended it", {})

    assert "the job used up to 290.0 MB and asked for 300.0 MB; the kernel ended it" in verdict.facts["message"]
    assert job.spec["resources"]["memory_bytes"] is None, "the session's supervisor watches the limit, not the call"
