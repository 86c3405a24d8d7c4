"""A project of the user's own, for the tests of what travels with a call."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder on sys.path, as the script's own folder is; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
