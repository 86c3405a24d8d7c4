"""A host in a folder, with the bridge, Python 3.6 where there is one, and the lab's packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.host import interpreter, layout_bridge
from tests.builder import toys
from tests.builder.host import Host


@pytest.fixture(scope="session")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bridge/<hash>, byte-compiled by its first use."""
    return layout_bridge(tmp_path_factory.mktemp("builder") / "bridge")


@pytest.fixture
def host(bridge: Path, tmp_path: Path) -> Iterator[Host]:
    """A host with the oldest Python of this machine and an empty root."""
    found = Host(tmp_path / "root", bridge, interpreter("3.6") or sys.executable)
    yield found
    found.close()


@pytest.fixture
def python(tmp_path: Path) -> dict[str, Any]:
    """The package of a Python, as a plan names it."""
    return toys.python(tmp_path / "shelf")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Where a test puts its packages."""
    return tmp_path / "shelf"
