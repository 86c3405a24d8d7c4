"""Schedulers: which one serves a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import Scheduler
from clusterfn.scheduler.slurm import Slurm

__all__ = ["scheduler_for"]


def scheduler_for(host: Host, facts: Mapping[str, Any]) -> Scheduler:
    """The scheduler of a host, given the agent's facts, `user` and `boot_id`, and `queue`, as `Bare` wants it."""
    if host.scheduler == "slurm":
        return Slurm(host, str(facts.get("user", "")))
    return Bare(str(facts.get("boot_id", "")), facts.get("queue", tuple))
