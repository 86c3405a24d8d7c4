"""A working directory of which no clusterfn.yml is found."""

from __future__ import annotations

import pytest


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A working directory with nothing above it that could be found, and no other place."""
    monkeypatch.delenv("CLUSTERFN_CONFIG", raising=False)
    monkeypatch.delenv("CLUSTERFN_HOST", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return tmp_path
