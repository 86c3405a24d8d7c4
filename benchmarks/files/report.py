"""The figures of real files: a section of docs/explanation/compatibility.md, and every line for benchmarks/results."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.files import build, read
from benchmarks.files.collect import CACHE, HERE, KINDS, ROOT
from benchmarks.report import commit, machine

PAGE = ROOT / "docs" / "explanation" / "compatibility.md"
SECTION = HERE / "written.md"
_RESULTS = ROOT / "benchmarks" / "results"
_BUILT = "### Environments in which imports work\n"
_STEPS_OF_BUILT = {"imports": "sets", "build": "files"}
_HEADING = "## Environment files that people have"
_WORDS = (read.SAME, read.TOLD, read.BOTH, read.RIGHTLY, read.UNREACHABLE, read.WRONGLY,
          read.DIFFERS, read.TRACEBACK)  # fmt: skip
Lines = Sequence[Mapping[str, Any]]


def write(results: Mapping[str, Lines], *, is_whole: bool) -> str:
    """Write the reports, the section, and the page that has it; return their paths.

    Args:
        is_whole: Whether the texts of all files are here; else what was read and solved before stays in the section.
    """
    first, _, second = SECTION.read_text().partition(_BUILT)
    built = {step: found for step, found in results.items() if step in _STEPS_OF_BUILT and found}
    names = []
    if is_whole:
        names.append(_report("files", {step: found for step, found in results.items() if step not in _STEPS_OF_BUILT}))
        first = _section(results, names[-1])
    if built:
        names.append(_report("imports", built))
        second = _section_of_built(built, names[-1])
    SECTION.write_text(first.rstrip() + "\n" + (f"\n{_BUILT}{second}" if second else ""))
    page = PAGE.read_text()
    found = re.search(rf"^{_HEADING}\n.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    place = found.span() if found else (page.index("## Exceptions that do not arrive"),) * 2
    PAGE.write_text(page[: place[0]] + SECTION.read_text() + "\n" + page[place[1] :])
    return ", ".join(str(path.relative_to(ROOT)) for path in (PAGE, *(_RESULTS / name for name in names)))


def _report(kind: str, results: Mapping[str, Lines]) -> str:
    lines = [f"{kind} of {commit()}, {machine()}", *lines_of(results)]
    for step, found in results.items():
        for each in found:
            if each["word"] not in (read.SAME, build.IMPORTS):
                lines.append(f"{step}: {each['word']}: {each['name']}: {_clean(each['why'])}")
    name = f"{kind}-{commit()}.txt"
    (_RESULTS / name).write_text("\n".join(lines) + "\n")
    return name


def lines_of(results: Mapping[str, Lines]) -> list[str]:
    """Return the figures as lines for a terminal."""
    shown = []
    for step, found in results.items():
        counts = Counter(each["word"] for each in found)
        words = ", ".join(f"{word} {n}" for word, n in counts.most_common())
        shown += [f"{step}: {len(found)}: {words}"] if found else []
    return shown


def is_reached(results: Mapping[str, Lines]) -> bool:
    """Whether the targets are reached: 98 % read right, nothing differs without a word, and no traceback."""
    found = results["read"]
    found = [each for each in found if each["word"] != read.UNREACHABLE]
    good = sum(each["word"] in read.GOOD for each in found)
    worst = [each for lines in results.values() for each in lines if each["word"] in (read.DIFFERS, read.TRACEBACK)]
    return good >= 0.98 * len(found) and not worst


def results(step: str) -> list[dict[str, Any]]:
    """Return what a step has found."""
    path = CACHE / f"{step}.json"
    return list(json.loads(path.read_text())) if path.exists() else []


def _clean(text: str) -> str:
    text = text.replace(f"{CACHE}/texts/", "").replace(str(ROOT), ".").replace(str(Path.home()), "~")
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= 400 else f"{text[:400]}…"


def _section(results: Mapping[str, Lines], report: str) -> str:
    found = results["read"]
    years = sorted(each["day"][:4] for each in found)
    return (HERE / "section.md").read_text().format(
        files=len(found), repositories=len({each["repository"] for each in found}), years=f"{years[0]} to {years[-1]}",
        report=report, table=_table(found), more="\n".join(_more(results)),
    )  # fmt: skip


def _section_of_built(results: Mapping[str, Lines], report: str) -> str:
    rows = [f"| | environments | {' | '.join(build.WORDS)} |", "|---" * (len(build.WORDS) + 2) + "|"]
    for step, found in results.items():
        words = Counter(each["word"] for each in found)
        cells = [str(words[word] or "") for word in build.WORDS]
        rows.append(f"| {_STEPS_OF_BUILT[step]} | {len(found)} | {' | '.join(cells)} |")
    return (HERE / "built.md").read_text().format(report=report, table="\n".join(rows))


def _table(found: Lines) -> str:
    rows = [f"| kind | files | {' | '.join(_WORDS)} |", "|---" * (len(_WORDS) + 2) + "|"]
    for kind in [*KINDS, ""]:
        words = Counter(each["word"] for each in found if kind in ("", each["kind"]))
        cells = [str(words[word] or "") for word in _WORDS]
        rows.append(f"| {kind or 'all'} | {sum(words.values())} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _more(results: Mapping[str, Lines]) -> list[str]:
    texts = {
        "solve": "files without packages of conda were locked, beside `uv pip compile` without restrictions",
        "sets": "sets of requirements of machine learning were locked in the same way",
    }
    shown = []
    for step, text in texts.items():
        counts = Counter(each["word"] for each in results.get(step, ()))
        if counts:
            parts = ", ".join(f"{n} {word}" for word, n in counts.most_common())
            shown.append(f"- {len(results[step])} {text}: {parts}.")
    return shown
