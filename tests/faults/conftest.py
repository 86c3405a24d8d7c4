"""The fault suite: its cases run beside each other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As in tests/conftest.py, but for a whole module: its cases run in threads of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("CLUSTERFN_")]:
            patch.delenv(name)
        folder = tmp_path_factory.mktemp("xdg")
        for kind in ("config", "cache", "state", "data"):
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(folder / kind))
        patch.setenv("CLUSTERFN_CONFIG", str(folder / "none.yml"))
        yield
