"""The solver of conda's packages ends with the program that wants a lock."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lock.conftest import Bench
from tests.processes import is_running
from tests.waiting import until

pytestmark = pytest.mark.lab


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_the_solver_ends_with_the_process_that_wants_the_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
):
    config = bench.folder / "clusterfn.yml"
    config.write_text(f"hosts: {{local: {{scheduler: local, root: {bench.folder}/root}}}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bench.channel = f"http://127.0.0.1:{silent.getsockname()[1]}/main"
        path = bench.write("dependencies: [six]\n")
        argv = [sys.executable, "-m", "clusterfn", "env", "lock", str(path), "local"]
        with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
            pid = until(lambda: solvers_of(process.pid))[0]
            process.send_signal(number)
            process.communicate(timeout=150)
        until(lambda: not is_running(pid))  # although its channel is still silent

    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert not (bench.folder / "environment.conda-lock.yml").exists()


def solvers_of(pid: int) -> list[int]:
    """The processes of the solver that a process has started."""
    try:
        children = [
            each for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
        ]
        return [int(each) for each in children if b"conda_program" in Path(f"/proc/{each}/cmdline").read_bytes()]
    except OSError:  # a thread or a process has ended since it was listed
        return []


def test_a_long_solve_says_what_it_waits_for_and_leaves_no_temporary_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    temporary = bench.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("clusterfn.environment.conda_solver.PATIENCE_S", 0.02)

    bench.lock("  - six\n")

    assert list(temporary.iterdir()) == []
    assert any(line.startswith("still solving environment.yml (") for line in bench.said)
    assert any(line.endswith(": conda's packages") for line in bench.said), bench.said
