"""The shelf of wheels that the tests of projects share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.environment.shelf import Shelf, shelf_in


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    with shelf_in(tmp_path, monkeypatch) as made:
        yield made
