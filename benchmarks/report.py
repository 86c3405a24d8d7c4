"""The measurements as one table, on the screen and in benchmarks/results."""

from __future__ import annotations

import datetime
import itertools
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.measure import Series

RESULTS = Path(__file__).parent / "results"
_SCALE = {"ms": 1e3, "s": 1.0, "MB": 1.0, "%": 1.0, "trips": 1.0, "x": 1.0, "KB": 1.0}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What was measured.
        series: The samples, in seconds for "ms" and "s", else in the unit.
        against: What it is compared with, in words.
        ratio: How many times that, by the median; None if there is nothing to compare with.
        shortest: The same of the shortest times, which others on the machine disturb less.
        limit: The largest ratio that we promise; for a row without `against` the largest median.
    """

    what: str
    series: Series
    unit: str = "ms"
    against: str = ""
    ratio: float | None = None
    limit: float | None = None
    shortest: float | None = None

    @classmethod
    def versus(cls, what: str, ours: Series, theirs: Series, against: str, limit: float | None = None) -> Row:
        """A time compared with another that was measured in the same rounds."""
        return cls(what, ours, "ms", against, ours.over(theirs), limit, ours.low / theirs.low)

    @property
    def met(self) -> bool | None:
        """Whether the limit is met; None where nothing is promised."""
        if self.limit is None:
            return None
        return (self.series.median * _SCALE[self.unit] if self.ratio is None else self.ratio) <= self.limit

    def cells(self) -> list[str]:
        """The row's texts."""
        values = [self.series.median, self.series.low, self.series.high]
        middle, low, high = (_number(value * _SCALE[self.unit]) for value in values)
        limit = "" if self.limit is None else f"{self.limit:g}" + (" ×" if self.ratio is not None else f" {self.unit}")
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} ×"
        ratio += "" if self.shortest is None else f" ({self.shortest:.2f})"
        met = {None: "", True: "yes", False: "NO"}[self.met]
        return [self.what, f"{middle} {self.unit}", f"{low}–{high}", self.against, ratio, limit, met]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


HEADERS = ["what", "median", "min–max", "compared with", "ratio (of the shortest)", "limit", "met"]


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, its columns aligned."""
    return aligned(HEADERS, [row.cells() for row in rows])


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts in Markdown."""
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    texts = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in lines]
    texts.insert(1, "-|-".join("-" * width for width in widths))
    return "\n".join(f"| {text} |" if number != 1 else f"|-{text}-|" for number, text in enumerate(texts))


def write(texts: Sequence[str], took_s: float) -> Path:
    """Write the report of this commit with these sections; return its path."""
    said = "Medians. Ratios are medians of the ratios within one round, in which everything was measured once."
    return keep("", "Speed", "\n".join([f"{took_s:.0f} s. {said}\n", *texts]))


def keep(name: str, title: str, text: str) -> Path:
    """Write a report of today and this commit, with the machine; its path, `<name><date>-<commit>.md`."""
    today = datetime.date.today().isoformat()
    path = unused(RESULTS / f"{name}{today}-{commit()}.md")
    path.write_text(f"# {title} on {today}, commit {commit()}\n\n{machine()}\n\n{text}", encoding="utf-8")
    return path


def unused(path: Path) -> Path:
    """Return this path, in a folder that is there; with a number if an earlier report of today has that name."""
    path.parent.mkdir(exist_ok=True)
    names = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], names) if not each.exists())


def reason_of(failed: Exception) -> str:
    """Return why something was not measured, in a line; of a program that failed, the last of what it said too."""
    said = getattr(failed, "stderr", None) or b""
    last = (said.decode(errors="replace") if isinstance(said, bytes) else str(said)).strip().splitlines()[-1:]
    return ": ".join([f"{type(failed).__name__}: {failed}", *last])


def commit() -> str:
    """The commit that is checked out, and whether the library is another."""
    changed = _out("git", "status", "--short", "clusterfn")
    return _out("git", "rev-parse", "--short", "HEAD") + ("-changed" if changed else "")


def machine() -> str:
    """This machine and what runs on it, in one line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("paramiko", "cloudpickle"))
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    system = (
        f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs, load {load} at the end"
    )
    slurm = _out("slurmctld", "-V") or "no SLURM"
    return f"{system}; Python {platform.python_version()}, {versions}, {_out('ssh', '-V')}, {slurm}."


def _out(*argv: str) -> str:
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    except OSError:
        return ""
    return (ran.stdout or ran.stderr).strip() if ran.returncode == 0 else ""
