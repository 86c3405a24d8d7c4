"""The table of faults counts what its cases say, and each fault is injected by some test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.faults.fault_table import FAULTS, fault_table, numbers_of

TESTS = Path(__file__).parents[1]


def case(fault: str, **facts: Any) -> dict[str, Any]:
    counts = {"seconds": 0.5, "lost": 0, "invented": 0, "left": 0}
    return {"fault": fault, "what": "SIGSEGV", "host": "bare", "saw": "KilledBySignal", "stage": "function"} | {
        **counts, **facts
    }  # fmt: skip


def test_what_is_lost_invented_or_left_is_counted_and_shown() -> None:
    text = fault_table([(True, case("2.8 3c 5")), (False, case("3c 5", host="slurm", lost=1, invented=2, left=3))])

    assert text.splitlines()[1] == "5    SIGSEGV"
    assert text.splitlines()[3].split()[-5:] == ["0.50", "1", "2", "3", "FAILED"]
    assert "1 of 50 faults, 2 cases, 1 failed: lost 1, invented 2, left over 3; from death to error" in text
    assert "not injected in this run: 1, 2, 3, 4, 6" in text


def test_a_test_elsewhere_is_identified_by_its_name() -> None:
    text = fault_table([(True, {"fault": "28", "what": "nothing is lost", "host": ""})])
    assert "\n     nothing is lost: it holds\n" in text
    assert "1 of 50 faults, 1 cases, 0 failed: lost 0" in text


def test_a_run_without_faults_has_no_table() -> None:
    assert fault_table([]) == ""


def test_each_fault_is_injected_somewhere() -> None:
    rows = re.findall(r'"(?:2\.\d+ )?(3c [^"]+)"', (TESTS / "faults" / "rows.py").read_text())
    files = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    marks = [mark for path in files for mark in re.findall(r'mark\.fault\("([^"]+)"\)', path.read_text())]
    assert set(FAULTS) - {number for fault in [*rows, *marks] for number in numbers_of(fault)} == set()
