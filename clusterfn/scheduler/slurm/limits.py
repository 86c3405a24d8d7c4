"""What SLURM allows one user: array sizes, jobs at a time, the time of a partition; as its own tools print it.

Pure, like all of `scheduler`. A tool that a site does not have limits nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterfn.scheduler.base import SchedulerLimits

_CONFIG = re.compile(r"^(MaxArraySize|MaxJobCount)\s*=\s*([0-9]{1,18})(?![0-9])", re.MULTILINE)
_PARTITION = re.compile(r"^PartitionName=(\S+)(.*)$", re.MULTILINE)
_COUNT = re.compile(r"(?<![0-9])[0-9]{1,18}(?![0-9])")  # what is longer is no count
_TIME = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}):([0-9]{1,9}):([0-9]{1,9})")


def commands(clusters: tuple[str, ...], user: str) -> Sequence[tuple[str, ...]]:
    """The configuration, the partitions, and what the user's associations allow."""
    return (
        ("scontrol", *clusters, "show", "config"),
        ("scontrol", *clusters, "--oneliner", "show", "partition"),
        ("sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=MaxSubmit,GrpSubmit"),
    )


def read(told: Sequence[str], partition: str | None) -> SchedulerLimits:
    """The limits, from what these commands printed; "" from one that failed.

    Example:
        >>> read(["MaxArraySize = 1001", "PartitionName=short Default=YES MaxTime=01:00:00", "40|"], None)
        SchedulerLimits(array=1000, jobs=40, time_s=3600.0)
    """
    config, partitions, associations = told
    known = {name: int(value) for name, value in _CONFIG.findall(config)}
    array = known.get("MaxArraySize")
    jobs = [int(word) for word in _COUNT.findall(associations)]
    jobs += [known["MaxJobCount"]] if "MaxJobCount" in known else []
    return SchedulerLimits(array - 1 if array else None, min(jobs, default=None), _time_s(partitions, partition))


def _time_s(text: str, wanted: str | None) -> float | None:
    """The shortest MaxTime of the partitions that are asked for, or of the default one."""
    names = wanted.split(",") if wanted else []
    found = _PARTITION.findall(text)
    times = [_seconds(facts) for name, facts in found if name in names or (not names and _is_default(facts))]
    return min((each for each in times if each is not None), default=None)


def _is_default(facts: str) -> bool:
    return " Default=YES" in facts


def _seconds(facts: str) -> float | None:
    found = re.search(r" MaxTime=(\S+)", facts)
    parts = _TIME.fullmatch(found[1]) if found else None
    if parts is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
