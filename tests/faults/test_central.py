"""The list of changes fits the library and the tests, so that `make mutations` can apply it."""

from __future__ import annotations

import ast

from tests.faults.central import ROOT, changes


def test_each_old_text_stands_once_and_each_test_exists() -> None:
    for change in changes():
        ast.parse(change.applied())
        file, _, name = change.test.partition("::")
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{change}\nThere is no test {change.test}."
