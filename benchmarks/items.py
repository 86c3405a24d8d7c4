"""`python -m benchmarks.items [COUNT [HOST]]`: a map of so many items (10,000) on SLURM, or with "bare" over SSH.

Writes benchmarks/results/map-<count>-<host>-<date>.txt: seconds, the client's memory, elements, files and questions.
"""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.place import made
from benchmarks.report import RESULTS
from tests.e2e.many_items import measure

_WHERE = {"slurm": "the lab's SLURM", "bare": "a machine without a scheduler, over SSH"}


def write(count: int, host: str, told: Mapping[str, Any]) -> Path:
    """The file that holds what was measured."""
    path = RESULTS / f"map-{count}-{host}-{datetime.date.today().isoformat()}.txt"
    here = f"two shared cores, {platform.system()} {platform.machine()}"
    lines = [f"{count} items that do nothing on {_WHERE[host]}, eight at a time, {here}"]
    path.write_text("\n".join([*lines, *(f"{what}: {value}" for what, value in told.items())]) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Measure, print and write."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    host = sys.argv[2] if len(sys.argv) > 2 else "slurm"
    with made() as place:
        path = write(count, host, measure(count, place.root, place.env, host))
    print(path.read_text(encoding="utf-8") + str(path))


if __name__ == "__main__":
    main()
