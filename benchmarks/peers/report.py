"""The passes as one table for each place, and as a file in benchmarks/results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers import venvs
from benchmarks.peers.contenders import MACHINE, SLURM, Contender
from benchmarks.peers.passes import LIMIT_S, Pass
from benchmarks.report import aligned, keep

Outcome = Sequence[Pass] | str
_HEADERS = ["what", "process for each call", "passes", "calls", "ms a call", "min–max", "times ours", "we are ahead"]


def table(where: str, outcomes: Mapping[Contender, Outcome]) -> str:
    """Everybody at one place, each compared with our slowest way there that gives each call such a process."""
    here = {who: outcome for who, outcome in outcomes.items() if who.where == where}
    return aligned(_HEADERS, [_cells(who, outcome, _ours_s(here, who.process)) for who, outcome in here.items()])


def _ours_s(here: Mapping[Contender, Outcome], process: str) -> float | None:
    """Our slowest; None if one of ours was not measured."""
    ours = [outcome for who, outcome in here.items() if not who.peer and who.process == process]
    passes = [outcome for outcome in ours if not isinstance(outcome, str)]
    return max(map(_middle_s, passes)) if passes and len(passes) == len(ours) else None


def _cells(who: Contender, outcome: Outcome, ours_s: float | None) -> list[str]:
    first = [who.name, who.process]
    if isinstance(outcome, str):
        return [*first, "", "", f"not measured: {outcome}", "", "", ""]
    each = [one.each_s * 1e3 for one in outcome]
    ratio = _middle_s(outcome) / ours_s if ours_s and who.peer else None
    ahead = "" if ratio is None else "yes" if ratio > 1 else "NO"
    return [
        *first, str(len(outcome)), str(min(one.done for one in outcome)), f"{statistics.median(each):.2f}",
        f"{min(each):.2f}–{max(each):.2f}", "" if ratio is None else f"{ratio:.2g} ×", ahead,
    ]  # fmt: skip


def _middle_s(passes: Sequence[Pass]) -> float:
    return statistics.median(one.each_s for one in passes)


def sections(measured: Mapping[int, Mapping[Contender, Outcome]]) -> list[str]:
    """Return a table for each place and number of calls."""
    return [
        f"## {where}, {calls:,} {'call' if calls == 1 else 'calls'}\n\n{table(where, outcomes)}"
        for where in (MACHINE, SLURM)
        for calls, outcomes in measured.items()
    ]


def write(measured: Mapping[int, Mapping[Contender, Outcome]], at_once: int, loads: str, took_s: float) -> Path:
    """Write the report of this commit; its path.

    Args:
        measured: The outcomes by the number of calls.
    """
    peers = sorted({who.peer for outcomes in measured.values() for who in outcomes if who.peer})
    known = ", ".join(text for text in map(venvs.versions, peers) if text)
    said = (
        f"Calls that do nothing, at most {at_once} at a time, after a few that are not counted: connections, workers "
        f"and byte code are there then. A pass is broken off after {LIMIT_S:.0f} s: then fewer calls were done, and "
        f"their time is told. Three passes, fewer where they are slow, more where they take less than a second. "
        f"{took_s:.0f} s in all. {loads}"
    )
    parts = [f"Peers: {known}.", said, *sections(measured)]
    return keep("peers-", "Many calls, by us and by others,", "\n\n".join(parts) + "\n")
