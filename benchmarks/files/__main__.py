"""`python -m benchmarks.files [STEPS] [WORDS]`: read, solve and build real files, and write the section and the report.

Steps are `read`, `solve`, `sets`, `imports`, `build` and `report`; without one, all are done. `imports` builds the
sets, `build` fifty of the files, on the lab's host with Python 3.6. Other words choose what contains one of them.
`choose FOLDER` makes the list of addresses from clones; `--clones=FOLDER` takes texts from there alone. A run that was
ended goes on where it was; `--again` begins anew.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.files import build, collect, read, report, solve
from benchmarks.files.collect import CACHE, HERE, Address

_WORKERS = 4  # most of them wait
_BUILDERS = 2
_BUILT = 50
_LARGE = ("nvidia-cudnn-cu13", "tensorflow")  # what has them takes gigabytes
STEPS = ("read", "solve", "sets", "imports", "build", "report")
Found = list[dict[str, Any]]


def main(words: Sequence[str]) -> int:
    """Do the steps that are wanted; return the exit code."""
    if words[:1] == ["choose"]:
        print(collect.choose(Path(words[1])))
        print("\n".join(collect.lines_of(collect.addresses())))
        return 0
    clones = next((Path(word.partition("=")[2]) for word in words if word.startswith("--clones=")), None)
    steps = [step for step in STEPS if step in words] or list(STEPS)
    chosen = [word for word in words if word not in STEPS and not word.startswith("--")]
    if "--again" in words:
        for step in steps:
            (CACHE / f"{step}.json").unlink(missing_ok=True)
    collect.bring(clones)
    files = [each for each in collect.addresses() if each.file.is_file()]
    if "read" in steps:
        with concurrent.futures.ProcessPoolExecutor(_WORKERS) as pool:  # they change their working directory
            _keep("read", _each(files, pool.submit, read.judge, chosen), chosen)
    if "solve" in steps:
        with concurrent.futures.ThreadPoolExecutor(_WORKERS) as pool:
            _keep("solve", _each(_solvable(files), pool.submit, solve.compare, chosen, report.results("solve")), chosen)
    if "sets" in steps:
        _keep("sets", _of_sets(chosen), chosen)
    if {"imports", "build"} & set(steps):
        with build.place() as place, concurrent.futures.ThreadPoolExecutor(_BUILDERS) as pool:
            for step in [each for each in ("imports", "build") if each in steps]:
                _keep(step, _built(step, files, functools.partial(pool.submit, place.build), chosen), chosen)
    results = {step: report.results(step) for step in STEPS}
    if "report" in steps and not chosen:
        print(report.write(results, is_whole=len(files) == len(collect.addresses())))
    print("\n".join(report.lines_of(results)))
    return 0 if report.is_reached(results) else 1


def _each(
    files: Sequence[Address], submit: Callable[..., Future[Any]], do: Callable[[Path], Any], chosen: Sequence[str],
    known: Found = [],  # noqa: B006 - nobody changes it
) -> Iterator[dict[str, Any]]:  # fmt: skip
    wanted = {each: f"{each.repository} {each.path}" for each in files}
    wanted = {each: name for each, name in wanted.items() if not chosen or any(word in name for word in chosen)}
    before = {} if chosen else {each["name"]: each for each in known}
    waiting = {each: submit(do, each.file) for each, name in wanted.items() if name not in before}
    for each, name in wanted.items():
        if name in before:
            yield before[name]
        else:
            yield {**asdict(each), "kind": each.kind, "name": name, **asdict(waiting[each].result())}


def _solvable(files: Sequence[Address]) -> list[Address]:
    """Return those that name only projects of an index, and that are read, in an order that mixes them."""
    read_well = {each["name"] for each in report.results("read") if each["word"] in (read.SAME, read.TOLD)}
    wanted = [each for each in files if each.kind in ("requirements.txt", "pyproject.toml")]
    found = [each for each in wanted if f"{each.repository} {each.path}" in read_well]
    return sorted(found, key=lambda each: hashlib.sha256(each.path.encode() + each.commit.encode()).digest())


def _sets(chosen: Sequence[str]) -> dict[str, Path]:
    """Return the sets with their files."""
    lines = [line for line in (HERE / "sets.txt").read_text().splitlines() if line and not line.startswith("#")]
    found = {}
    for number, line in enumerate(lines):
        if not chosen or any(word in line for word in chosen):
            found[line] = CACHE / "sets" / str(number) / "requirements.txt"
            found[line].parent.mkdir(parents=True, exist_ok=True)
            found[line].write_text("\n".join([*line.split(), ""]))
    return found


def _of_sets(chosen: Sequence[str]) -> Iterator[dict[str, Any]]:
    before = {} if chosen else {each["name"]: each for each in report.results("sets")}
    for line, path in _sets(chosen).items():
        yield before.get(line) or {"name": line, **asdict(solve.compare(path))}


def _built(
    step: str, files: Sequence[Address], submit: Callable[[Path], Future[build.Built]], chosen: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Build what was solved, the small ones first."""
    solved = [each for each in report.results("sets" if step == "imports" else "solve") if each["word"] == read.SAME]
    sizes = {each["name"]: (any(name in each["versions"] for name in _LARGE), len(each["versions"])) for each in solved}
    paths = _sets(()) if step == "imports" else {f"{each.repository} {each.path}": each.file for each in files}
    names = [name for name in sorted(sizes, key=lambda name: sizes[name]) if name in paths and sizes[name][1]]
    names = names if step == "imports" else names[:_BUILT]
    names = [name for name in names if not chosen or any(word in name for word in chosen)]
    before = {} if chosen else {each["name"]: each for each in report.results(step) if each["word"] in build.FINAL}
    waiting = {name: submit(paths[name]) for name in names if name not in before}
    for name in names:
        yield before[name] if name in before else {"name": name, **asdict(waiting[name].result())}


def _keep(step: str, found: Iterator[dict[str, Any]], chosen: Sequence[str]) -> None:
    kept = []
    for each in found:
        kept.append(each)
        print(f"{step}: {len(kept)} {time.strftime('%H:%M:%S')} {each['word']}: {each['name']}", flush=True)
        if each["why"]:
            print(f"    {each['why'][:700]}", flush=True)
        names = {one["name"] for one in kept}
        others = [one for one in report.results(step) if one["name"] not in names]
        (CACHE / f"{step}.json").write_text(json.dumps([*others, *kept], indent=1))
    if not chosen:  # what is no longer wanted does not count
        (CACHE / f"{step}.json").write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
