"""`python packaging/evidence.py REPORT`: write docs/evidence.md from the report of a session in the lab.

`make test-long` writes such a report, whose first line names commit, date and machine. The page has what was run, its
counts and its transcript, and nothing that the report does not say. The list of pages gets a link to it.
"""

from __future__ import annotations

import collections
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = re.compile(r"^(?P<what>[\w-]+) of (?P<commit>[0-9a-f]{7,40}), (?P<date>\d{4}-\d\d-\d\d), (?P<machine>.+)$")
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
SUMMARY = re.compile(r"^=*\s*\d+ (?:passed|failed|error|skipped|deselected).* in [\d.]+s")
PROGRESS = re.compile(r"^[.sxXFE]+\s*(?:\[\s*\d+%\])?$")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ENTRY = "- [Evidence: the transcript of a session in the lab](evidence.md)\n"
BEFORE = "(explanation/verified.md)\n"


def page(report: str) -> str:
    """Return docs/evidence.md for a report.

    Raises:
        ValueError: Its first line does not name commit, date and machine, or no test was counted in it.
    """
    first, _, rest = ESCAPES.sub("", report).partition("\n")
    head = HEAD.match(first)
    if head is None:
        raise ValueError(f"the first line is {first!r:.100}, and not `test-long of COMMIT, DATE, MACHINE`")
    lines = [line.rstrip() for line in rest.splitlines() if not PROGRESS.match(line)]
    counted: collections.Counter[str] = collections.Counter()
    for line in lines:
        for number, word in COUNTS.findall(line) if SUMMARY.match(line) else ():
            counted["errors" if word == "error" else word] += int(number)
    if not counted:
        raise ValueError("the report has no summary of pytest, such as `14 passed in 298.06s`: the run did not end")
    order = ("passed", "failed", "errors", "skipped", "xfailed", "xpassed")
    counts = ", ".join(f"{counted[word]} {word}" for word in order if counted[word])
    return f"""# Evidence: a session in the lab

The lab is real sshd, SLURM, Grid Engine and old interpreters on one machine; its GPUs are simulated.
[What was verified](explanation/verified.md) says which parts are real. `packaging/evidence.py` has written this page
from the report of `make {head["what"]}`.

| | |
|---|---|
| commit | `{head["commit"]}` |
| date | {head["date"]} |
| machine | {head["machine"]} |
| tests | {counts} |

To repeat it on Debian, as root: `git checkout {head["commit"]} && make {head["what"]}`.

## Transcript

Without lines that show progress alone.

```
{first}
{chr(10).join(lines).strip(chr(10)).replace("```", "'''")}
```
"""


def with_entry(index: str) -> str:
    """Return docs/index.md with a link to the page."""
    if ENTRY in index:
        return index
    before, place, after = index.partition(BEFORE)
    if not place:
        raise ValueError(f"docs/index.md has no line that ends with {BEFORE!r}")
    return before + place + ENTRY + after


def main(argv: list[str]) -> int:
    """Write the page and the link to it."""
    if len(argv) != 1:
        sys.stderr.write("usage: python packaging/evidence.py REPORT\n")
        return 2
    try:
        written = page(Path(argv[0]).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{argv[0]}: {error}\n")
        return 1
    index = ROOT / "docs" / "index.md"
    listed = with_entry(index.read_text(encoding="utf-8"))
    (ROOT / "docs" / "evidence.md").write_text(written, encoding="utf-8")
    index.write_text(listed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
