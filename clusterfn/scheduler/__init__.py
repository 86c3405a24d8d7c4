"""Schedulers: which one serves a host."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import Scheduler
from clusterfn.scheduler.grid_engine import GridEngine
from clusterfn.scheduler.slurm import INHERITED, Slurm

__all__ = ["SURVEY_UNSET", "scheduler_for"]

# What the questions of a survey must not inherit, whichever scheduler it finds.
SURVEY_UNSET = (*INHERITED, "SINFO_")
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


def scheduler_for(host: Host, facts: Mapping[str, Any] = _NO_FACTS) -> Scheduler:
    """Return the scheduler of a host.

    Args:
        facts: The agent's, `user` and `boot_id`, and `queue`, as `Bare` wants it. Without them it answers what depends
            on the configuration alone.
    """
    if host.scheduler == "slurm":
        return Slurm(host, str(facts.get("user", "")))
    if host.scheduler == "grid_engine":
        return GridEngine(host, str(facts.get("user", "")))
    return Bare(str(facts.get("boot_id", "")), facts.get("queue", tuple), host.name)
