"""A program that ends leaves its hosts alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterfn

SCRIPT = """
import clusterfn

@clusterfn.cluster(host="here")
def answer():
    return 42

print(answer())
"""


LEAVES = """
import json
import clusterfn

@clusterfn.cluster(host="here")
def wait(seconds=60):
    import time
    time.sleep(seconds)

session = clusterfn.Session("here")
left = [wait.submit(), wait.map([60]), session.submit(wait.__wrapped__)]
print(json.dumps([each.id for each in left]))
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each agent that this machine has started as the host `here`."""
    started, python = tmp_path / "started", tmp_path / "counting-python"
    python.write_text(f'#!/bin/sh\necho agent >>{started}\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    config = tmp_path / "clusterfn.yml"
    config.write_text(f"hosts:\n  here:\n    scheduler: local\n    root: {tmp_path / 'root'}\n    python: {python}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    return started


def test_a_script_that_ends_does_not_connect_once_more(started: Path, run_script: Callable[..., Any]) -> None:
    assert run_script(SCRIPT) == 42

    assert started.read_text() == "agent\n"


def test_a_script_that_ends_while_its_jobs_run_does_not_connect_once_more(
    started: Path, run_script: Callable[..., Any]
) -> None:
    left = run_script(LEAVES)
    connections = started.read_text()
    for job_id in left:
        clusterfn.attach(job_id.partition("/")[0]).stop()

    assert (len(left), connections) == (3, "agent\n")
