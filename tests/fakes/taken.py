"""A job that its host has taken, of which nothing is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterfn import Job
from clusterfn.calls.following import AgentSource
from clusterfn.calls.job_run import JobRun
from clusterfn.calls.run import Location
from clusterfn.config.spec import ResultPolicy


class TakenRun(JobRun):
    """It can be withdrawn."""

    def withdraw(self) -> bool:
        return True

    def why_silent(self) -> str:
        return "its host is silent"


def run(job_id: str = "7f3a000011112222", host: str = "tensor01", keeps: bool = False) -> TakenRun:
    """What is known of such a job."""
    settings = SimpleNamespace(name=host, is_this_machine=False)
    there: Any = SimpleNamespace(settings=settings, scheduler_rules=None)
    at = Location(there, job_id, f"/root/jobs/{job_id}", f"train.{job_id}", ResultPolicy())
    at.keeps = keeps
    return TakenRun(at, "train")


def taken(job_id: str = "7f3a000011112222", host: str = "tensor01", keeps: bool = False) -> Job[Any]:
    """What its user has."""
    known = run(job_id, host, keeps)
    return Job(known, source(known))


def source(known: TakenRun) -> AgentSource:
    """Where what it prints would come from."""
    return AgentSource(known, live=True)
