"""The page of what was verified names tests that exist, and the end of a report hides no failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_test_that_the_page_of_what_was_verified_names_exists():
    text = (ROOT / "docs" / "explanation" / "verified.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)

    assert len(named) > 20 and [name for name in named if not (ROOT / name).is_file()] == []


def test_a_module_that_is_skipped_or_broken_hides_no_failure_from_the_report(tmp_path):
    (tmp_path / "test_skipped.py").write_text("import pytest\npytest.skip('no', allow_module_level=True)\n")
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    options = ["-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c"]
    argv = [sys.executable, *options, os.devnull, tmp_path]

    ran = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=150)

    lines = ran.stdout.splitlines()
    assert "0 tests run, 1 skipped, 0 marked flaky" in lines
    assert any(line.startswith("ERROR ") and "test_broken.py" in line for line in lines)
