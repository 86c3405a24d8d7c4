"""Schedulers: which one serves a host, and which ones a survey finds there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import Scheduler
from clusterfn.scheduler.grid_engine import GridEngine, GridEngineSite
from clusterfn.scheduler.grid_engine import site as grid_engine_site
from clusterfn.scheduler.slurm import INHERITED, Slurm
from clusterfn.scheduler.slurm import site as slurm_site
from clusterfn.scheduler.slurm.site import Account, Partition

__all__ = [
    "NOT_THERE", "SILENT", "SURVEY_UNSET", "Account", "GridEngineSite", "Partition", "Section", "SurveyedSchedulers",
    "read_schedulers", "scheduler_for", "surveyed_scheduler",
]  # fmt: skip

# What the questions of a survey must not inherit, whichever scheduler it finds.
SURVEY_UNSET = (*INHERITED, "SINFO_")
NOT_THERE = 127
SILENT = "it did not answer in time"
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


@dataclass(frozen=True)
class Section:
    """The answer to one question of a survey.

    Attributes:
        rc: None if it did not answer in time.
        lines: The lines before the first part.
        parts: The lines after `MARK.name`, by name; parts of the same name are joined.
    """

    name: str
    rc: int | None = None
    lines: list[str] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)

    def part(self, name: str) -> list[str]:
        """Return the lines of a part; none if there is no such part."""
        return self.parts.get(name, [])


@dataclass(frozen=True)
class SurveyedSchedulers:
    """The schedulers that a survey has found; `hosts.survey.site.Site` explains each."""

    partitions: tuple[Partition, ...] | None
    accounts: tuple[Account, ...]
    limits: tuple[str, ...]
    trouble: str
    grid_engine: GridEngineSite | None


def read_schedulers(found: Mapping[str, Section]) -> SurveyedSchedulers:
    """Read the sections of the schedulers in the answer to a survey."""
    missing = Section("", NOT_THERE)
    queues, accounts = found.get("partitions", missing), found.get("accounts", missing)
    associations = accounts.lines if accounts.rc == 0 else []
    trouble = "" if queues.rc in (0, NOT_THERE) else "\n".join(queues.lines[-5:]) or f"it ended with status {queues.rc}"
    qconf, site = found.get("grid_engine", missing), None
    if qconf.rc == 0:
        site = grid_engine_site.read(qconf.lines, qconf.part("environments"), qconf.part("resources"))
    elif qconf.rc != NOT_THERE:
        site = GridEngineSite(trouble="\n".join(qconf.lines[-5:]) or SILENT)
    return SurveyedSchedulers(
        partitions=None if queues.rc == NOT_THERE else slurm_site.partitions(queues.lines) if queues.rc == 0 else (),
        accounts=slurm_site.accounts(associations),
        limits=slurm_site.limits(found.get("limits", missing).lines, associations),
        trouble=SILENT if queues.rc is None else trouble,
        grid_engine=site,
    )


def surveyed_scheduler(partitions: object | None, grid_engine: object | None) -> str:
    """Return the scheduler that a survey has found, as clusterfn.yml writes it; None means: no tools of that one."""
    if partitions is not None:
        return "slurm"
    return "bare" if grid_engine is None else "grid_engine"
