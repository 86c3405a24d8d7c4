"""Schedulers: which one serves a host, and which ones a survey finds there."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import Scheduler
from clusterfn.scheduler.grid_engine.site import GridEngineSite
from clusterfn.scheduler.grid_engine.submit import GridEngine
from clusterfn.scheduler.site import SchedulerSite, Section
from clusterfn.scheduler.slurm.site import INHERITED, SlurmSite
from clusterfn.scheduler.slurm.submit import Slurm

__all__ = ["SCHEDULERS", "SITES", "SURVEY_UNSET", "read_sites", "scheduler_for"]

# word of `scheduler:` -> what submits there; the other words mean a machine without a scheduler
SCHEDULERS = {"slurm": Slurm, "grid_engine": GridEngine}
# ... and what a survey finds of it
SITES: Mapping[str, type[SchedulerSite]] = {"slurm": SlurmSite, "grid_engine": GridEngineSite}

# What the questions of a survey must not inherit, whichever scheduler it finds.
SURVEY_UNSET = (*INHERITED, "SINFO_")
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


def scheduler_for(host: Host, facts: Mapping[str, Any] = _NO_FACTS) -> Scheduler:
    """Return the scheduler of a host.

    Args:
        facts: The agent's, `user` and `boot_id`, and `queue`, as `Bare` wants it. Without them it answers what depends
            on the configuration alone.
    """
    if host.scheduler in SCHEDULERS:
        return SCHEDULERS[host.scheduler](host, str(facts.get("user", "")))
    return Bare(str(facts.get("boot_id", "")), facts.get("queue", tuple), host.name)


def read_sites(found: Mapping[str, Section]) -> dict[str, SchedulerSite]:
    """Read which schedulers a survey has found, by the word of `scheduler:`."""
    sites = {word: kind.read(found) for word, kind in SITES.items()}
    return {word: site for word, site in sites.items() if site is not None}
