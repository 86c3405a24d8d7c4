"""A program that ends leaves its hosts alone."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from tests.e2e.conftest import MINOR, local_host
from tests.lab import DelayProxy, Lab

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
def started(tmp_path: Path, warm_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each agent that this machine has started as the host `here`."""
    started, python = tmp_path / "started", tmp_path / "counting-python"
    python.write_text(f'#!/bin/sh\necho agent >>"{started}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    config = tmp_path / "clusterfn.yml"
    config.write_text(local_host(warm_root) + f"    python: {python}\n")
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


WAITS = """
import json, os, time
import clusterfn

os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 2)

@clusterfn.cluster(host="here", cores=1)
def wait(seconds=600):
    time.sleep(seconds)

first = wait.submit()
while first.state != "RUNNING":
    time.sleep(0.02)
second = wait.with_options(cores=64).submit()
while not second.reason:
    time.sleep(0.02)
print(json.dumps([first.id, second.id]))
"""


def test_a_script_that_ends_says_which_of_its_jobs_wait_and_which_run(
    started: Path, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    runs, waits = run_script(WAITS)
    said = (tmp_path / "said").read_text()
    for job_id in (runs, waits):
        clusterfn.attach(job_id).stop()

    assert f"keeps running on here: {runs[:4]} (" in said
    assert f"stays in the queue of here: {waits[:4]} (" in said


UPLOAD = """
import json, os
import clusterfn

@clusterfn.cluster(host="far")
def size(data):
    return len(data)

print(json.dumps(size.submit(os.urandom(30 << 20)).id))
"""


@pytest.mark.lab
def test_a_script_that_ends_right_after_submit_sends_its_payload_once_over_one_connection(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_script: Callable[..., Any]
) -> None:
    config, ssh_config, root = tmp_path / "clusterfn.yml", tmp_path / "ssh_config", f"e2e-{secrets.token_hex(4)}"
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    with DelayProxy(0, port := lab.host("py36-bash").port) as proxy:
        way = f"Host py36-bash\n    Port {proxy.port}\n    HostKeyAlias [127.0.0.1]:{port}\n\n"
        ssh_config.write_text(way + lab.ssh_config.read_text())
        config.write_text(
            f"hosts:\n  far: {{address: py36-bash, scheduler: bare, transport: paramiko, root: ~/{root},"
            f" ssh_config: {ssh_config}, limits: {{cores: 64}}, environment: 'python:{lab.python(MINOR)}'}}\n"
        )
        try:
            job_id = run_script(UPLOAD)
            connections, megabytes = proxy.accepted, proxy.bytes_up >> 20

            assert clusterfn.attach(job_id).result(150) == 30 << 20
        finally:
            shutil.rmtree(lab.home("bash") / root, ignore_errors=True)

    assert connections == 1 and 30 <= megabytes < 40  # with all else that a new host gets; twice would be 60
