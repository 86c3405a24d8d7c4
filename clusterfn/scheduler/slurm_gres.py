"""What SLURM's nodes have of cards, which are free, and which jobs wait for some: as scontrol and squeue print it.

Pure, like all of `scheduler`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FACT = re.compile(r"(?:^| )(NodeName|Gres|GresUsed|State|Partitions)=(\S*)")
_CARDS = re.compile(r"(?:^|,)gpu:(?:([^:,(]+):)?([0-9]{1,9})(?![0-9])")
_WANTS = re.compile(r"gpu(?::[^,\s]+)?")
# field and width; a value that is as wide as its column is cut off
_COLUMNS = (
    ("JobArrayID", 32), ("UserName", 32), ("tres-per-node", 48), ("tres-per-job", 48), ("SubmitTime", 22),
    ("Reason", 40), ("Name", 80),
)  # fmt: skip
_OLD = "--format=%i|%u|%b|%V|%r|%j"  # SLURM before 18.08 has no tres-per-job


@dataclass(frozen=True)
class Cards:
    """The cards of one type on one node.

    Attributes:
        state: The node's, "idle+drain".
        type: "" where the site names none.
        used: None where SLURM does not say.
    """

    node: str
    state: str
    type: str
    total: int
    used: int | None


@dataclass(frozen=True)
class Waiting:
    """A job that wants cards and has not started.

    Attributes:
        wants: "gpu:a100:2".
        submitted: As SLURM writes it, "2026-11-20T14:53:04".
    """

    id: str
    user: str
    wants: str
    submitted: str
    reason: str
    name: str


def nodes_command(clusters: Sequence[str]) -> tuple[str, ...]:
    """Shows all nodes with their cards, and what of them is in use."""
    return ("scontrol", *clusters, "--details", "--oneline", "show", "node")


def waiting_command(clusters: Sequence[str], old: bool = False) -> tuple[str, ...]:
    """Shows all jobs that wait; `old` is for a squeue that knows fewer columns."""
    shown = _OLD if old else "--Format=" + ",".join(f"{name}:{width}" for name, width in _COLUMNS)
    return ("squeue", *clusters, "--noheader", "--all", "--states=PENDING", shown)


def types_command(clusters: Sequence[str]) -> tuple[str, ...]:
    """Shows what kinds of nodes have of cards and the like, each kind once."""
    return ("sinfo", *clusters, "--noheader", "--all", "--format=%G")


def types(text: str) -> list[str]:
    """The types of all nodes' cards, sorted; "" among them where some have none.

    Example:
        >>> types("gpu:a6000:4,lscratch:50\\n(null)\\ngpu:2(S:0)")
        ['', 'a6000']
    """
    return sorted({kind for line in text.splitlines() for kind, _ in _counted(line.strip())})


def nodes(text: str) -> list[Cards]:
    """The cards of each node that has some.

    Example:
        >>> nodes("NodeName=n1 Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) State=MIXED")
        [Cards(node='n1', state='mixed', type='a100', total=4, used=1)]
    """
    found = []
    for line in text.splitlines():
        facts = {name: value for name, value in reversed(_FACT.findall(line))}
        used = dict(_counted(facts.get("GresUsed", "")))
        for kind, total in _counted(facts.get("Gres", "")):
            left = used.get(kind) if used else None
            found.append(Cards(facts.get("NodeName", "?"), facts.get("State", "?").lower(), kind, total, left))
    return found


def _counted(gres: str) -> Iterable[tuple[str, int]]:
    return [(kind, int(count)) for kind, count in _CARDS.findall(gres)]


def waiting(text: str, old: bool = False) -> list[Waiting]:
    """The jobs that wait for cards, in the order of the text."""
    rows = [line.split("|", 5) if old else _cut(line) for line in text.splitlines() if line.strip()]
    found = []
    for row in rows:
        wants = [word for cell in row[2:-3] for word in _WANTS.findall(cell)]
        if len(row) >= 6 and wants:
            found.append(Waiting(row[0], row[1], ",".join(wants), *row[-3:]))
    return found


def _cut(line: str) -> list[str]:
    """A line of columns that have fixed widths."""
    cells, start = [], 0
    for _, width in _COLUMNS:
        cells.append(line[start : start + width].strip())
        start += width
    return cells
