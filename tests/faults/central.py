"""`python -m tests.faults.central [PART/PARTS]`: each change of `central.txt` in a copy, and whether its test sees it.

There, `== FILE` names the file of the changes that follow, and `tests/...` the test that sees them. A change is a line
`- TEXT`, a part of a line that the file has once, and a line `+ TEXT` with what replaces it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.faults.mutations import Mutation
from tests.faults.test_mutations import copy_of_the_library

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_suffix(".txt")
AT_ONCE = 2
_PYTEST = ["timeout", "600", sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
_SEEN = (1, 124)  # a test fails, or hangs


class Change(NamedTuple):
    """One; `line` is that of the list."""

    file: str
    old: str
    new: str
    test: str
    line: int

    def __str__(self) -> str:
        return f"{LIST.name}:{self.line} {self.file}: {self.old} -> {self.new}"

    def applied(self) -> str:
        """The changed text of the file."""
        text = (ROOT / self.file).read_text()
        assert text.count(self.old) == 1, f"{self}\nIt stands there {text.count(self.old)} times: list another text."
        return text.replace(self.old, self.new)


def changes() -> Iterator[Change]:
    """All of the list."""
    file = test = old = ""
    for number, line in enumerate(LIST.read_text().splitlines(), start=1):
        mark, _, text = line.partition(" ")
        if mark == "==":
            file = text
        elif mark == "-":
            old = text
        elif mark == "+":
            yield Change(file, old, text, test, number - 1)
        else:
            test = line


def status_of(copy: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Run tests in a copy; return the status, and what was printed."""
    env = {**os.environ, "PYTHONPATH": str(copy)}
    ran = subprocess.run([*_PYTEST, *tests], cwd=copy, env=env, capture_output=True, text=True)
    return ran.returncode, (ran.stdout + ran.stderr)[-3000:]


def is_seen(change: Change, copies: SimpleQueue[Path]) -> bool:
    """Apply a change to a copy that is free, and run its test; print and return whether that fails."""
    copy = copies.get()
    (file := copy / change.file).write_text(change.applied())
    os.utime(file, times=(change.line, change.line))  # byte code is told from that of another change by this date
    status, text = status_of(copy, [change.test])
    shutil.copy2(ROOT / change.file, file)
    copies.put(copy)
    print("seen" if status in _SEEN else f"NOT SEEN by {change.test}\n{text}", change, flush=True)
    return status in _SEEN


def main(part: str) -> int:
    """Run a part of the list, and before it all its tests on the library as it is."""
    number, _, parts = part.partition("/")
    chosen = list(changes())[int(number) - 1 :: int(parts)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for place in range(AT_ONCE):
            copies.put(copy := copy_of_the_library(Path(folder, str(place)), Mutation("nothing", (), ())))
        status, text = status_of(copy, sorted({change.test for change in chosen if change.applied()}))
        assert status == 0, f"These tests fail without any change:\n{text}"
        seen = sum(pool.map(lambda change: is_seen(change, copies), chosen))
    print(f"{seen} of {len(chosen)} changes are seen")
    return int(seen < len(chosen))


if __name__ == "__main__":
    sys.exit(main((sys.argv[1:] or ["1/1"])[0]))
