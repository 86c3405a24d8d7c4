"""What `qconf` says of a site, and the lines of clusterfn.yml that suit it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterfn.scheduler.grid_engine.submit import USUAL_NAMES

_GPU_NAME = re.compile(r"(?:n|num_?)?gpus?|gpu_?cards?", re.IGNORECASE)


@dataclass(frozen=True)
class GridEngineSite:
    """One site.

    Attributes:
        queues: Names.
        environments: Those parallel environments whose slots are all on one host.
        resources: What jobs can ask for: the name, and whether an amount is for the whole job instead of each slot.
        trouble: What qconf said instead; "" if it answered.
    """

    queues: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    resources: dict[str, bool] | None = None
    trouble: str = ""

    def settings(self) -> dict[str, Any]:
        """What to write below `grid_engine:` where the site's names are not the usual ones."""
        found: dict[str, Any] = {}
        resources = self.resources or {}
        usual, memory, gpus = (USUAL_NAMES[key] for key in ("parallel_environment", "memory", "gpus"))
        if self.environments and usual not in self.environments:
            found["parallel_environment"] = self.environments[0]
        if resources and memory not in resources:
            found["memory"] = None
        other = next((name for name in resources if _GPU_NAME.fullmatch(name)), None)
        if other and gpus not in resources:
            found["gpus"] = gpus = other
        per_job = [name for name in (memory, gpus) if resources.get(name)]
        return {**found, "per_job": per_job} if per_job else found


def read(queues: Sequence[str], environments: Sequence[str], resources: Sequence[str]) -> GridEngineSite:
    """Read `qconf -sql`, a line "NAME ALLOCATION_RULE" for each parallel environment, and `qconf -sc`."""
    rules = [line.split() for line in environments]
    columns = [line.split() for line in resources if not line.startswith("#")]
    return GridEngineSite(
        tuple(line.strip() for line in queues if line.strip()),
        tuple(rule[0] for rule in rules if rule[1:] == ["$pe_slots"]),
        {row[0]: row[5] == "JOB" for row in columns if len(row) >= 7 and row[4] != "NO"},
    )
