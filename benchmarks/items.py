"""`python -m benchmarks.items [COUNT]`: a map of so many items (10,000) on the lab's SLURM; elements, files, questions.

Writes benchmarks/results/map-<count>-<date>.txt. Takes ten minutes on two cores.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.place import made
from benchmarks.report import RESULTS
from tests.e2e.many_items import measure


def write(count: int, told: Mapping[str, Any]) -> Path:
    """The file that holds what was measured."""
    path = RESULTS / f"map-{count}-{datetime.date.today().isoformat()}.txt"
    lines = [f"{count} items that do nothing on the lab's SLURM, eight at a time, two shared cores"]
    path.write_text("\n".join([*lines, *(f"{what}: {value}" for what, value in told.items())]) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Measure, print and write."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with made() as place:
        path = write(count, measure(count, place.root, place.env))
    print(path.read_text(encoding="utf-8") + str(path))


if __name__ == "__main__":
    main()
