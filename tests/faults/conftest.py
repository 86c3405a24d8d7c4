"""The fault suite: its cases run beside each other, and a matrix of what was seen stands at the end of the run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest

import clusterfn
from tests.conftest import TABLES
from tests.faults.case import Case

_FILE = Path(__file__).parents[2] / "benchmarks" / "results" / "truth-matrix.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-matrix", action="store_true", help="write the matrix of tests/faults to benchmarks/results"
    )


@pytest.fixture(scope="module", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As in tests/conftest.py, but for a whole module: its cases run in threads of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("CLUSTERFN_")]:
            patch.delenv(name)
        folder = tmp_path_factory.mktemp("xdg")
        for kind in ("config", "cache", "state", "data"):
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(folder / kind))
        patch.setenv("CLUSTERFN_CONFIG", str(folder / "none.yml"))
        yield


@pytest.fixture(scope="module")
def in_matrix(request: pytest.FixtureRequest) -> Iterator[Callable[[list[Case]], None]]:
    """Put cases into a table at the end of the report once they have ended, and into its file if that is wanted."""
    seen: list[Case] = []
    yield seen.extend
    text = matrix(seen)
    tables = request.config.stash.setdefault(TABLES, [])
    tables.append(("truth matrix", f"clusterfn from {Path(clusterfn.__file__).parent}\n{text}"))
    if request.config.getoption("--write-matrix"):
        _FILE.parent.mkdir(parents=True, exist_ok=True)
        _FILE.write_text("\n\n".join([_title(), *(table for heading, table in tables if heading == "truth matrix")]))


def matrix(cases: list[Case]) -> str:
    """A line for each row and host: the class, the stage, seconds from death to the caller."""
    lines = [f"{'row':31} {'fault':9} {'host':16} {'the caller gets':22} {'stage':12} seconds"]
    for case in cases:
        got = type(case.error).__name__ if case.error is not None else "its value"
        stage = getattr(case.error, "stage", None) or "-"
        row = case.row
        lines.append(f"{row.name:31} {row.fault:9} {case.host:16} {got:22} {stage:12} {case.seconds:7.2f}")
    slowest = max(case.seconds for case in cases if case.error is not None) if any(c.error for c in cases) else 0.0
    rows = len({case.row.name for case in cases})
    return "\n".join([*lines, f"{rows} rows, {len(cases)} cases; from death to error at most {slowest:.1f} s"])


def _title() -> str:
    root = _FILE.parents[2]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True).stdout
    return f"What a caller gets for each way to end (tests/faults), commit {commit.strip()}, {date.today()}."
