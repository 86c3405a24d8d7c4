"""Each fault of the table is injected by some test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.fault_table import FAULTS, numbers_of

TESTS = Path(__file__).parents[1]


def test_each_fault_is_injected_somewhere() -> None:
    rows = re.findall(r'"(?:2\.\d+ )?(3c [^"]+)"', (TESTS / "faults" / "rows.py").read_text())
    files = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    marks = [mark for path in files for mark in re.findall(r'mark\.fault\("([^"]+)"\)', path.read_text())]
    assert set(FAULTS) - {number for fault in [*rows, *marks] for number in numbers_of(fault)} == set()
