"""What SLURM says of a site in a survey: its partitions, the user's accounts, and what bounds both. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_COUNT = re.compile(r"-?\d{1,18}", re.ASCII)
_TOLD = ("MaxArraySize", "AccountingStorageEnforce", "DefMemPerCPU", "DefMemPerNode", "MaxMemPerNode")
_NOTHING = ("", "UNLIMITED", "(null)", "none")
_BOUNDS = ("MaxJobs", "MaxSubmitJobs", "MaxWall", "MaxTRES")


@dataclass(frozen=True)
class Partition:
    """One partition of SLURM, as sinfo has it. `state` is "up" where jobs start."""

    name: str
    default: bool
    state: str
    time_limit: str
    nodes: int
    gres: str


@dataclass(frozen=True)
class Account:
    """One association of the user, as sacctmgr has it."""

    name: str
    partition: str
    qos: tuple[str, ...]


def partitions(lines: Iterable[str]) -> tuple[Partition, ...]:
    """Parse `sinfo --format=%P|%a|%l|%D|%G`: a row for each kind of node, so one partition may have several."""
    found: dict[str, Partition] = {}
    for line in lines:
        words = line.strip().split("|")
        if len(words) != 5:
            continue
        starred, state, limit, nodes, gres = words
        name = starred.rstrip("*")
        row = Partition(name, starred.endswith("*"), state, limit, int(nodes) if _COUNT.fullmatch(nodes) else 0, gres)
        found[name] = _joined(found[name], row) if name in found else row
    return tuple(found.values())


def _joined(one: Partition, other: Partition) -> Partition:
    gres = ", ".join(dict.fromkeys(each for each in (one.gres, other.gres) if each not in _NOTHING)) or one.gres
    return Partition(one.name, one.default, one.state, one.time_limit, one.nodes + other.nodes, gres)


def accounts(lines: Iterable[str]) -> tuple[Account, ...]:
    """Parse the first three columns of `sacctmgr -nP show assoc format=account,partition,qos,...`."""
    found = []
    for name, partition, qos, *_ in _associations(lines):
        found.append(Account(name, partition, tuple(each for each in qos.split(",") if each)))
    return tuple(dict.fromkeys(found))


def limits(lines: Iterable[str], associations: Iterable[str]) -> tuple[str, ...]:
    """Return the limits and demands in `scontrol show config` and in the other columns of the associations."""
    config = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    told = [f"{name}={config[name]}" for name in _TOLD if config.get(name, "") not in _NOTHING]
    for name, partition, _, *bounds in _associations(associations):
        set_ = ", ".join(f"{bound}={value}" for bound, value in zip(_BOUNDS, bounds) if value)
        where = f"account {name}" + (f", partition {partition}" if partition else "")
        told += [f"{where}: {set_}"] if set_ else []
    return tuple(told)


def _associations(lines: Iterable[str]) -> Iterable[list[str]]:
    rows = (line.strip().split("|") for line in lines)
    return [row for row in rows if len(row) >= 3 and row[0] and " " not in row[0]]
