"""The page of evidence says what its report says, and the page of what was verified names tests that exist."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
REPORT = """test-long of 20552f1, 2026-11-21, Linux x86_64, Python 3.11.7
The lab is up (41 daemons, /opt/lab)
.....s....F                                                              [ 40%]
\x1b[31mFAILED tests/e2e/test_map.py::test_a - ```AssertionError```\x1b[0m
12 tests run, 1 skipped, 0 marked flaky
1 failed, 10 passed, 1 skipped, 900 deselected in 300.10s (0:05:00)
================== 5 passed, 2 errors in 12.00s ==================
"""


@pytest.fixture(scope="module")
def evidence() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "packaging" / "evidence.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_commit_date_counts_and_the_transcript_of_its_report(evidence):
    page = evidence.page(REPORT)

    assert "| commit | `20552f1` |\n| date | 2026-11-21 |\n| machine | Linux x86_64, Python 3.11.7 |" in page
    assert "| tests | 15 passed, 1 failed, 2 errors, 1 skipped |" in page
    assert "FAILED tests/e2e/test_map.py::test_a - '''AssertionError'''\n" in page and "[ 40%]" not in page
    assert page.count("```") == 2


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ("1 passed in 1.0s\n", "the first line is '1 passed in 1.0s', and not"),
        (REPORT.partition("\n")[0] + "\n....\nmake: *** [test-long] Error 2\n", "the run did not end"),
    ],
)
def test_a_report_that_proves_nothing_is_rejected(evidence, report, says):
    with pytest.raises(ValueError, match=says):
        evidence.page(report)


def test_the_list_of_pages_gets_one_link_to_it(evidence):
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")

    once = evidence.with_entry(index)

    assert once.count("](evidence.md)") == 1 and evidence.with_entry(once) == once


def test_each_test_that_the_page_of_what_was_verified_names_exists():
    text = (ROOT / "docs" / "explanation" / "verified.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)

    assert len(named) > 20 and [name for name in named if not (ROOT / name).is_file()] == []


def test_a_module_that_is_skipped_or_broken_hides_no_failure_from_the_report(tmp_path):
    (tmp_path / "test_skipped.py").write_text("import pytest\npytest.skip('no', allow_module_level=True)\n")
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        tmp_path,
    ]

    ran = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=150)

    lines = ran.stdout.splitlines()
    assert "0 tests run, 1 skipped, 0 marked flaky" in lines
    assert any(line.startswith("ERROR ") and "test_broken.py" in line for line in lines)
