"""Classes of a script that a library made, between equal versions: `test_arrays.py` has the others."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures import roundtrip
from tests.unit.bridge.serialization.test_calls import CALLS, version

SCRIPTS = {
    "made_by_libraries.py": ("attrs", "pydantic"),
    "postponed.py": ("pydantic",),
    "mapped_script.py": ("msgspec", "sqlalchemy"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_class_that_a_library_made_goes_and_comes_back(name, tmp_path):
    for library in SCRIPTS[name]:
        pytest.importorskip(library)
    script = str(CALLS / name)
    report = roundtrip.run(sys.executable, [script], tmp_path, CALLS, there=(sys.executable, version(sys.executable)))

    assert {promise: how for promise, how in report.items() if how not in ("kept", "")} == {}
