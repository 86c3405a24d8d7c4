"""Schedulers: which one serves a host, and which ones a survey finds there."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from clusterfn.config.spec import Host
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import Scheduler
from clusterfn.scheduler.slurm import INHERITED

if TYPE_CHECKING:
    from clusterfn.scheduler.site import SchedulerSite, Section

__all__ = ["SCHEDULERS", "SITES", "SURVEY_UNSET", "kind_of_site", "read_sites", "scheduler_for"]

# word of `scheduler:` -> the class that submits there, loaded only for a host that has it: each first call would wait
# for all of them. The other words mean a machine without a scheduler.
SCHEDULERS = {"slurm": "slurm.submit.Slurm", "grid_engine": "grid_engine.submit.GridEngine"}
# ... and the class for what a survey finds of it
SITES = {"slurm": "slurm.site.SlurmSite", "grid_engine": "grid_engine.site.GridEngineSite"}

# What the questions of a survey must not inherit, whichever scheduler it finds.
SURVEY_UNSET = (*INHERITED, "SINFO_")
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


def scheduler_for(host: Host, facts: Mapping[str, Any] = _NO_FACTS) -> Scheduler:
    """Return the scheduler of a host.

    Args:
        facts: The agent's, `user` and `boot_id`, and `queue`, as `Bare` wants it. Without them it answers what depends
            on the configuration alone.
    """
    if host.scheduler not in SCHEDULERS:
        return Bare(str(facts.get("boot_id", "")), facts.get("queue", tuple), host.name)
    scheduler: Scheduler = _load(SCHEDULERS[host.scheduler])(host, str(facts.get("user", "")))
    return scheduler


def kind_of_site(word: str) -> type[SchedulerSite] | None:
    """Return the class for what a survey finds of the scheduler with this word; None without a scheduler."""
    return _load(SITES[word]) if word in SITES else None


def read_sites(found: Mapping[str, Section]) -> dict[str, SchedulerSite]:
    """Read which schedulers a survey has found, by the word of `scheduler:`."""
    sites = {word: _load(name).read(found) for word, name in SITES.items()}
    return {word: site for word, site in sites.items() if site is not None}


def _load(name: str) -> Any:
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)
