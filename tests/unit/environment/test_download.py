"""Downloads of packages end together: with a failure of one, the others do not go on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.builder.progress import BuildFailed
from clusterfn.environment import download
from clusterfn.environment.lock import LockedPackage
from clusterfn.errors import EnvironmentBuildError
from tests.waiting import WAIT_S


def test_a_download_that_runs_ends_when_another_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun, ended = threading.Event(), []

    def fetch(package: Any, target: str, moved: Any) -> None:
        if package.name == "gone":
            begun.wait(WAIT_S)
            raise BuildFailed("gone cannot be fetched: HTTP 404", stage="fetch")
        due = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < due:
                begun.set()
                moved(1)
                time.sleep(0.01)
        except CancelledError:
            ended.append(package.name)
            raise

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(download.builders, "fetch_archive", fetch)
    packages = [LockedPackage(name, "1", "pip", f"https://x.example/{name}.whl", name * 8, "linux-64")
                for name in ("gone", "large")]  # fmt: skip

    with pytest.raises(EnvironmentBuildError, match="HTTP 404"):
        list(download.download_packages(packages, lambda *_: None))
    assert ended == ["large"]
