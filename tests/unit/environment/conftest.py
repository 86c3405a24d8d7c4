"""The shelf of wheels that the tests of projects share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.environment.shelf import Shelf, make_shelf


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    return make_shelf(tmp_path, monkeypatch)
