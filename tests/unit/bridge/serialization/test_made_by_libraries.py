"""Classes of a script that a library made, between equal versions: `test_arrays.py` has the others."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures import roundtrip
from tests.unit.bridge.serialization.test_calls import CALLS, version

pytest.importorskip("pydantic")
pytest.importorskip("attrs")


@pytest.mark.parametrize("name", ["made_by_libraries.py", "postponed.py"])
def test_a_class_that_a_library_made_goes_and_comes_back(name, tmp_path):
    script = str(CALLS / name)
    report = roundtrip.run(sys.executable, [script], tmp_path, CALLS, there=(sys.executable, version(sys.executable)))

    assert {promise: how for promise, how in report.items() if how not in ("kept", "")} == {}
