"""`python -m benchmarks.round_trips`: how often each action goes to its host and back; `make bench` does it too."""

from __future__ import annotations

import datetime
from pathlib import Path

from benchmarks.report import RESULTS, machine
from tests.e2e.round_trips import ACTIONS, DELAYS_MS, behind, counted
from tests.lab import Lab


def table(lab: Lab) -> str:
    """Every action's round trips, once for each delay, in Markdown."""
    columns = []
    for delay in DELAYS_MS:
        with behind(lab, delay / 2000) as there:
            columns.append([str(count) for count in counted(there)])
    lines = [["what", *(f"at {delay} ms" for delay in DELAYS_MS), "limit"], ["---"] * (len(DELAYS_MS) + 2)]
    lines += [[action.name, *found, str(action.limit)] for action, *found in zip(ACTIONS, *columns)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(text: str) -> Path:
    """Write the report of today; its path."""
    today = datetime.date.today().isoformat()
    path = RESULTS / f"round-trips-{today}.md"
    said = "Where a connection was made, its round trips stand first; the limit is for the others."
    path.write_text(f"# Round trips on {today}\n\n{machine()}\n{said}\n\n{text}\n", encoding="utf-8")
    return path


def main() -> None:
    """Count, print, and write."""
    text = table(Lab())
    print(f"{text}\n\n{write(text)}")


if __name__ == "__main__":
    main()
