"""A program that ends leaves its hosts alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import clusterfn

@clusterfn.cluster(host="here")
def answer():
    return 42

print(answer())
"""


def test_a_script_that_ends_does_not_connect_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_script: Callable[..., Any]
) -> None:
    started, python = tmp_path / "started", tmp_path / "counting-python"
    python.write_text(f'#!/bin/sh\necho agent >>{started}\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    config = tmp_path / "clusterfn.yml"
    config.write_text(f"hosts:\n  here:\n    scheduler: local\n    root: {tmp_path / 'root'}\n    python: {python}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))

    assert run_script(SCRIPT) == 42

    assert started.read_text() == "agent\n"
