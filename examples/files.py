"""Files there and back: arguments that are files of this machine, and files that the function leaves.

python examples/files.py [HOST]
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

from clusterfn import File, cluster


@cluster(memory="1GB")
def summarise(table: Path) -> dict[str, float]:
    """Mean of each column; also written to a file, in the job's own folder."""
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    means = {name: sum(float(row[name]) for row in rows) / len(rows) for name in rows[0]}
    lines = [f"{name}\t{mean}\n" for name, mean in means.items()]
    Path("means.tsv").write_text("".join(lines))
    return means


def main() -> None:
    """Write a table here, have it summarised there, and fetch what was left there."""
    function = summarise.on(sys.argv[1]) if len(sys.argv) > 1 else summarise
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "measured values.csv")
        table.write_text("height,weight\n180,80\n170,60\n")

        job = function.submit(File(table))  # the content travels once, however often it is named

        print("means:", job.result())
        print("left there:", ", ".join(file.name for file in job.files))
        (fetched,) = job.download("*.tsv", to=folder)
        print("fetched:", fetched.read_text().splitlines())


if __name__ == "__main__":
    main()
