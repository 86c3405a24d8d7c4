"""Schedulers: which one serves a host, and which ones a survey finds there. `bridge.schedulers.registry` has all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.schedulers.registry import SCHEDULERS
from clusterfn.config.spec import Host
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import Scheduler

if TYPE_CHECKING:
    from clusterfn.scheduler.site import SchedulerSite, Section

__all__ = ["SCHEDULERS", "SURVEY_UNSET", "kind_of_site", "kinds_of_sites", "read_sites", "scheduler_for"]

# What the questions of a survey must not inherit, whichever scheduler it finds.
SURVEY_UNSET = tuple(prefix for scheduler in SCHEDULERS.values() for prefix in scheduler.obeyed)
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


def scheduler_for(host: Host, facts: Mapping[str, Any] = _NO_FACTS) -> Scheduler:
    """Return the scheduler of a host.

    Args:
        facts: The agent's, `user` and `boot_id`, and `queue`, as `Bare` wants it. Without them it answers what depends
            on the configuration alone.
    """
    registered = SCHEDULERS.get(host.scheduler)
    if registered is None:
        return Bare(str(facts.get("boot_id", "")), facts.get("queue", tuple), host.name)
    scheduler: Scheduler = registered.import_part(registered.client)(host, str(facts.get("user", "")))
    return scheduler


def kind_of_site(word: str) -> type[SchedulerSite] | None:
    """Return the class for what a survey finds of the scheduler with this word; None without a scheduler."""
    registered = SCHEDULERS.get(word)
    return None if registered is None else registered.import_part(registered.site)


def kinds_of_sites() -> dict[str, type[SchedulerSite]]:
    """Return these classes by the word of `scheduler:`."""
    return {word: scheduler.import_part(scheduler.site) for word, scheduler in SCHEDULERS.items()}


def read_sites(sections: Mapping[str, Section]) -> dict[str, SchedulerSite]:
    """Read which schedulers a survey has found, by the word of `scheduler:`."""
    sites = {word: kind.read(sections) for word, kind in kinds_of_sites().items()}
    return {word: site for word, site in sites.items() if site is not None}
