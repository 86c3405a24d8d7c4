"""The wait for a kernel's holder: its address, the end of its job, or why the job waits."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.display import console
from clusterfn.errors import ClusterfnError, WorkerLost
from clusterfn.hosts.rpc.reply import Reply, RequestCancelled
from clusterfn.integrations.jupyter import kernel_job

FACTS = json.dumps({"socket": "/run/holder", "submission": "77", "attach": ["attach", "77"]}).encode()


class WaitingJob(concurrent.futures.Future[None]):
    """A job that waits for a GPU."""

    id, host, folder, reason = "7f3a000011112222", "lab8", "/jobs/7f3a", "waiting for a GPU"

    @property
    def status(self) -> str:
        return f"PENDING ({self.reason})"


@pytest.fixture
def coming() -> Reply[bytes]:
    reply: Reply[bytes] = Reply(lambda: reply.reject(RequestCancelled("it was cancelled")))
    return reply


def awaited(job: Any, coming: Reply[bytes]) -> kernel_job.KernelJob:
    host = SimpleNamespace(name="lab8")
    scheduler = SimpleNamespace(has_nodes=True, join_command=lambda submission: ["srun", submission])
    connection = SimpleNamespace(wait=lambda path: coming)
    host_state: Any = SimpleNamespace(connection=connection, settings=host, scheduler=scheduler)
    return kernel_job.await_holder(job, host_state)


def test_a_job_that_ends_before_its_holder_listens_says_why_and_is_asked_no_more(coming: Reply[bytes]) -> None:
    job = WaitingJob()
    job.set_exception(WorkerLost("its node has died"))

    with pytest.raises(ClusterfnError, match="its node has died"):
        awaited(job, coming)

    assert isinstance(coming.exception(0), RequestCancelled)


def test_a_wait_says_once_what_for(coming: Reply[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    looks = itertools.count(1)
    tell = kernel_job.tell_why_it_waits

    def look(job: Any, said: dict[str, str]) -> None:
        tell(job, said)
        if next(looks) == 3:
            coming.resolve(FACTS)

    monkeypatch.setattr(console, "tell", told.append)
    monkeypatch.setattr(kernel_job, "LOOK_S", 0.01)
    monkeypatch.setattr(kernel_job, "tell_why_it_waits", look)

    assert awaited(WaitingJob(), coming).address == "/run/holder"
    assert told == ["7f3a PENDING (waiting for a GPU)"]
