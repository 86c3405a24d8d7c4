"""How often each action goes to its host and back: `make bench ROWS=round-trips`."""

from __future__ import annotations

from tests.e2e.round_trips import ACTIONS, DELAYS_MS, behind, counted
from tests.lab import Lab


def table(lab: Lab) -> str:
    """Return a sentence, and every action's round trips for each delay, in Markdown."""
    columns = []
    for delay in DELAYS_MS:
        with behind(lab, delay / 2000) as there:
            columns.append([str(count) for count in counted(there)])
    lines = [["what", *(f"at {delay} ms" for delay in DELAYS_MS), "limit"], ["---"] * (len(DELAYS_MS) + 2)]
    lines += [[action.name, *found, str(action.limit)] for action, *found in zip(ACTIONS, *columns)]
    said = "Where a connection was made, its round trips stand first; the limit is for the others."
    return said + "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
