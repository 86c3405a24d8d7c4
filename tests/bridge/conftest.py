"""A host in a folder: the bridge laid out as on a real one, and jobs that run there under any two interpreters."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.apart import apart
from tests.bridge.box import Box
from tests.bridge.host import Bench
from tests.bridge.layout import layout_bridge


@pytest.fixture(scope="session")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bridge/<hash>, byte-compiled by its first use."""
    return layout_bridge(tmp_path_factory.mktemp("root") / "bridge" / "test")


@pytest.fixture
def bench(bridge: Path, tmp_path: Path) -> Iterator[Bench]:
    """Runs jobs below a fresh root with this test's own Python on both sides."""
    with apart() if os.geteuid() == 0 else contextlib.nullcontext() as namespace:
        bench = Bench(tmp_path / "root", bridge, sys.executable, sys.executable, namespace)
        yield bench
        bench.close()


@pytest.fixture
def as_root() -> None:
    """For tests that mount a file system."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a small file system")


@pytest.fixture
def box(bench: Bench, tmp_path: Path) -> Iterator[Box]:
    """A machine with two cards."""
    folder = tmp_path / "bin"
    folder.mkdir()
    made = Box(folder, bench)
    with made.marks:
        yield made
