"""The figures of a survey: docs/explanation/compatibility.md for readers, a table, and all lines as a report."""

from __future__ import annotations

import csv
import datetime
import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import commit, machine
from benchmarks.survey import environments
from benchmarks.survey.environments import HERE, ROOT

PAGE = ROOT / "docs" / "explanation" / "compatibility.md"
TABLE = PAGE.with_suffix(".csv")
RESULTS = ROOT / "benchmarks" / "results"
_TEMPLATE = HERE / "page.md"
_FILES = HERE / "files.md"  # what a program found in November 2026
_SUITES = HERE.parent / "suites" / "section.md"  # what another command has found
_TOOLS = ("clusterfn", "cloudpickle", "dill", "pickle")
_WRONG = ("rejected wrongly", "rejected without a line", "does not load", "differs")


@dataclass
class Count:
    """How many objects went, how many of these each tool carried, and the lines of those that clusterfn did not."""

    all: int = 0
    carried: Counter[str] = field(default_factory=Counter)
    both: int = 0
    failed: list[tuple[str, str, bool]] = field(default_factory=list)

    def add(self, name: str, line: dict[str, Any], beside: str) -> None:
        """Count an object; `beside` is the tool that clusterfn is measured by."""
        self.all += 1
        self.carried.update(tool for tool in _TOOLS if line.get(tool) == "")
        carries = line.get(beside) == ""
        self.both += carries and line["clusterfn"] == ""
        if line["clusterfn"]:
            self.failed.append((name, line["clusterfn"], carries))

    def only_others(self, beside: str) -> list[tuple[str, str]]:
        """Return what clusterfn did not carry although that tool did."""
        return [(name, why) for name, why, carries in self.failed if carries]


@dataclass
class Totals:
    """All figures."""

    values: Count = field(default_factory=Count)
    exceptions: Count = field(default_factory=Count)
    pairs: dict[str, Count] = field(default_factory=dict)
    classes: dict[str, Count] = field(default_factory=dict)
    functions: dict[str, Counter[str]] = field(default_factory=dict)
    rejected: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    packages: set[str] = field(default_factory=set)


def totals(results: Iterable[Path]) -> Totals:
    """Add up the results of tasks."""
    found = Totals()
    for path in results:
        if not path.exists():
            continue
        told = json.loads(path.read_text())
        part, _, rest = path.stem.partition("-")
        if part == "values":
            found.packages.add(rest)
        if part == "functions":
            _add_functions(found, rest, told)
            continue
        for line in told:
            _add(found, part, rest, line)
    return found


def _add(found: Totals, part: str, rest: str, line: dict[str, Any]) -> None:
    kind, name = line["kind"], line["name"]
    if kind in ("ended", "unfinished"):
        found.ended.append(f"{rest}: {name}")
    elif kind == "value" and "clusterfn" in line:
        found.values.add(name, line, "cloudpickle")
    elif kind == "exception":
        found.exceptions.add(name, line, "pickle")
    elif kind == "case":
        where = found.pairs if part == "pairs" else found.classes
        group = rest if part == "pairs" else rest.partition("-3.")[2].join(["3.", ""])
        name = name if part == "pairs" else f"{rest.partition('-')[0]}: {name}"
        where.setdefault(group, Count()).add(name, line, "cloudpickle")


def _add_functions(found: Totals, rest: str, told: dict[str, Any]) -> None:
    package, _, here = rest.rpartition("-from-")
    for there, each in told.items():
        found.functions.setdefault(f"{here} to {there}", Counter()).update(each["counts"])
        for verdict, file, path, line, said in each["failures"]:
            place = f"{package} {here} to {there}: {_short(file)}:{line} {path.rpartition('.')[2].partition(':')[0]}"
            if verdict in _WRONG:
                found.wrong.append((f"{verdict}: {place}", said))
            elif verdict == "rejected":
                found.rejected.append((place, said))


def _short(file: str) -> str:
    return re.sub(r".*/(site-packages|lib/python3\.\d+)/", "", file)


def is_reached(found: Totals) -> bool:
    """Whether every target is reached."""
    lacking = found.exceptions.only_others("pickle")
    pairs = all(each.carried["clusterfn"] >= 0.98 * each.all for each in found.pairs.values())
    classes = not any(each.only_others("cloudpickle") for each in found.classes.values())
    return (
        found.exceptions.carried["clusterfn"] >= 0.995 * found.exceptions.all and not lacking
        and found.values.both >= 0.999 * found.values.carried["cloudpickle"]
        and pairs and classes and not found.wrong
    )  # fmt: skip


def lines(found: Totals) -> list[str]:
    """Return the figures as lines for a terminal, with what clusterfn did not carry and another did."""
    shown = [_line("exceptions", found.exceptions, "pickle"), _line("values", found.values, "cloudpickle")]
    shown += [_line(f"pair {name}", each, "cloudpickle") for name, each in found.pairs.items()]
    shown += [_line(f"classes {name}", each, "cloudpickle") for name, each in found.classes.items()]
    shown += [f"functions {name}: {dict(each)}" for name, each in found.functions.items()]
    shown += [f"ended: {each}" for each in found.ended]
    for kind, each, beside in (("exception", found.exceptions, "pickle"), ("value", found.values, "cloudpickle")):
        shown += [f"{kind} {name}: {_clean(why)}" for name, why in each.only_others(beside)]
    for group in (found.pairs, found.classes):
        shown += [f"{where} {name}: {_clean(why)}" for where, each in group.items() for name, why, _ in each.failed]
    return shown + [f"{what}: {_clean(said)}" for what, said in found.wrong[:200]]


def _line(name: str, count: Count, beside: str) -> str:
    tools = ", ".join(f"{tool} {count.carried[tool]}" for tool in _TOOLS if count.carried[tool])
    return f"{name}: {count.all}, carried by {tools}; of {count.carried[beside]} by {beside}, {count.both} by clusterfn"


def _clean(text: str) -> str:
    text = re.sub(r"/tmp/survey-\w+/", "", re.sub(r"\s+", " ", text))
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", text.replace(str(ROOT), ".").replace(str(Path.home()), "~"))
    return text if len(text) <= 220 else f"{text[:220]}…"


def write(results: Iterable[Path], missing: Sequence[str], took_s: float) -> str:
    """Write the page, its table and the report; return their paths."""
    found = totals(results)
    name = f"survey-{commit()}.txt"
    head = f"survey of {commit()}, {machine()}, {took_s / 60:.0f} minutes in this run"
    failed = [f"value, by nobody: {each}: {_clean(why)}" for each, why, other in found.values.failed if not other]
    rejected = [f"rejected: {place}: {_clean(said)}" for place, said in found.rejected]
    (RESULTS / name).write_text("\n".join([head, *missing, *lines(found), *failed, *rejected]) + "\n")
    PAGE.write_text(_page(found, name))
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("kind", "name", "detail"), *_rows(found, missing)])
    return f"{PAGE.relative_to(ROOT)}, {(RESULTS / name).relative_to(ROOT)}"


def _page(found: Totals, report: str) -> str:
    pinned = environments.surveyed()
    return _TEMPLATE.read_text().format(
        packages=len(_surveyed(found)),
        all=len(pinned),
        more=len(pinned) - 300,
        report=report,
        when=datetime.date.today().isoformat(),
        machine=f"{platform.system()} with {os.cpu_count()} cores",
        suites=_SUITES.read_text(),
        figures=_figures(found),
        functions=_functions(found),
        goals=_goals(found),
        files=_FILES.read_text(),
    )


def _surveyed(found: Totals) -> list[str]:
    return [line for line in environments.surveyed() if line.partition("==")[0] in found.packages]


def _rows(found: Totals, missing: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table: what does not arrive, with the reason, and the packages with their versions."""
    for name, reason, _ in found.exceptions.failed:
        yield "exception, arrives as another", name, _clean(reason)
    for name, reason in found.values.only_others("cloudpickle"):
        yield "value, carried by cloudpickle alone", name, _clean(reason)
    for name in sorted(name for name, _, other in found.values.failed if not other):
        yield "value, carried by neither", name, ""
    for kind, groups in (("version pair", found.pairs), ("class of a script", found.classes)):
        for where, count in groups.items():
            for name, reason, _ in count.failed:
                yield kind, f"{where}: {name}", _clean(reason)
    for syntax, functions in Counter(_syntax(said) for _, said in found.rejected).most_common():
        yield "syntax that the other Python lacks", syntax, f"{functions} functions"
    for name in (*missing, *found.ended):
        yield "the process ended", name, ""
    for line in _surveyed(found):
        package, _, version = line.partition("==")
        yield "surveyed package", package, version


def _figures(found: Totals) -> str:
    rows = [("exceptions raised in a job", found.exceptions), ("values, there and back", found.values)]
    rows += [(f"between versions: {name.replace('-', ' ')}", each) for name, each in found.pairs.items()]
    rows += [(f"classes of a script, Python {name.replace('-', ' ')}", each) for name, each in found.classes.items()]
    head = ["| what | number | clusterfn | cloudpickle | dill | plain pickle |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(f"| {name} | {each.all:,} | {_cells(each)} |" for name, each in rows)])


def _cells(count: Count) -> str:
    cells = [count.carried[tool] for tool in _TOOLS]
    return " | ".join(f"{n:,} ({_percent(n, count.all)})" if n else "" for n in cells)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.2f} %"


def _functions(found: Totals) -> str:
    columns = ("equal", "not compared", "rejected", *_WRONG)
    rows = ["| Python | functions | equal | accepted, not compared | rejected rightly | rejected wrongly | others |"]
    rows.append("|---|---|---|---|---|---|---|")
    for name, counts in sorted(found.functions.items()):
        numbers = [sum(counts.values()), *(counts[each] for each in columns[:4]), sum(counts[e] for e in columns[4:])]
        rows.append(f"| {name} | " + " | ".join(f"{each:,}" for each in numbers) + " |")
    return "\n".join(rows)


def _goals(found: Totals) -> str:
    values, exceptions = found.values, found.exceptions
    return (
        f"Of {values.carried['cloudpickle']:,} values that cloudpickle carries, clusterfn carries {values.both:,}"
        f" ({_percent(values.both, values.carried['cloudpickle'])})."
        f" Of {exceptions.carried['pickle']:,} exceptions that plain pickle carries,"
        f" clusterfn carries {exceptions.both:,}."
    )


def _syntax(said: str) -> str:
    """Return what a rejection says of the syntax, without the name and line of the function."""
    return said.rpartition("this syntax: ")[2].strip() or said
