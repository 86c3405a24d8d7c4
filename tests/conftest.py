"""Fixtures of every test: a clean environment, the lab, and which tests run without being asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.lab import Lab
    from tests.lab.channel import Channel

# The lab's own code needs Unix modules; the fixture below imports it only where it can be.
collect_ignore = ["lab"] if sys.platform == "win32" else []
_LONG_S = 600
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too (make test-long)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `long` are left out unless --long is given; then each may take ten minutes, or what it says."""
    if config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(_LONG_S))
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the person's configuration, state or proxies; each has its own XDG folders."""
    names = [name for name in os.environ if name.startswith("CLUSTERFN_") or name.lower() in PROXIES]
    for name in names:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("xdg")
    for kind in ("config", "cache", "state", "data"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(folder / kind))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(folder / "config" / "clusterfn" / "config.yml"))
    monkeypatch.setattr("clusterfn.hosts.transports.prompts.person", lambda: None)  # the tester is not asked for codes


REQUIRED = os.environ.get("CLUSTERFN_REQUIRE_LAB") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Where the lab is demanded nothing is skipped but what needs a card: a skip there is a failure."""
    report = yield
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail") and not item.get_closest_marker("gpu"):
        report.outcome = "failed"
        report.longrepr = f"skipped, although everything must run here: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The lab if it is up. Otherwise the test is skipped, or fails where CLUSTERFN_REQUIRE_LAB=1 asks for a lab."""
    if sys.platform == "win32":
        pytest.skip("the lab needs Debian")
    from tests.lab import Lab, LabMissing

    try:
        return Lab()
    except LabMissing as missing:
        if REQUIRED:
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def channel(lab: Lab) -> Channel:
    """The lab's conda channel, made first where it is missing (16 s)."""
    from tests.lab.channel import provide

    return provide()


@pytest.fixture
def gpubox_reset(lab: Lab) -> Iterator[None]:
    """Eight idle cards before and after."""
    lab.gpubox.reset()
    yield
    lab.gpubox.reset()


@pytest.fixture
def lab_config(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with tensor01 and slurm, and CLUSTERFN_CONFIG pointing at it."""
    path = lab.clusterfn_yml(tmp_path / "clusterfn.yml", "tensor01", "slurm")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    return path
