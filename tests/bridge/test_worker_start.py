"""How the worker of an attempt starts: where, with which variables, and what it waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bridge.host import Bench, obey_modes
from tests.bridge.layout import layout_bridge

ENV = "def f():\n    import os\n    return os.environ.get('MINE')\n"


def test_relative_folders_of_its_variables_are_those_of_its_working_directory(bench: Bench, tmp_path: Path):
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / "src" / "mine.py").write_text("VALUE = 7\n")
    spec = {"env": {"PYTHONPATH": "src"}, "cwd": str(tmp_path / "project")}

    job, outcome = bench.run("def f():\n    import mine\n    return mine.VALUE\n", **spec)

    assert outcome["kind"] == "returned" and job.value() == 7


def test_a_working_directory_that_is_not_there_is_named_by_the_attempt(bench: Bench):
    _, outcome = bench.run("def f():\n    return 1\n", cwd="/no/such/folder")

    assert (outcome["kind"], outcome["stage"]) == ("environment", "environment")
    assert outcome["message"] == "the working directory /no/such/folder cannot be used: No such file or directory"
    assert outcome["hint"] == "correct cwd="


def test_a_working_directory_that_a_variable_makes_relative_is_entered_once(bench: Bench):
    job = bench.job("def f():\n    import os\n    return os.getcwd()\n", cwd="$PLACE")

    assert job.run(PLACE="tmp")["kind"] == "returned" and job.value() == "/tmp"


def test_an_interpreter_behind_a_program_of_the_host_gets_its_cpus(bench: Bench, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n"{bench.python}" "$@"\nexit $?\n')
    python.chmod(0o755)

    job, outcome = bench.run("def f():\n    import os\n    return len(os.sched_getaffinity(0))\n", python=str(python))

    assert outcome["kind"] == "returned" and job.value() == 1


def test_a_default_timeout_of_sockets_in_the_environment_does_not_end_it(bench: Bench, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import socket\nsocket.setdefaulttimeout(0.01)\n")
    begins = "        late = worker.begin(cwd, env, cpus, self.job.held.worker_fds())\n"
    slow = ("supervisor/run.py", begins, f"        time.sleep(1)\n{begins}")
    bench.bridge = layout_bridge(tmp_path / "slow", slow)

    assert bench.run("def f():\n    return 1\n", env={"PYTHONPATH": str(tmp_path)})[1]["kind"] == "returned"


def built(bench: Bench, ready: str | None, **more: object) -> dict[str, object]:
    """An environment of the builder: what a job's spec says of it, and `more` of how it is used."""
    folder = bench.root / "envs" / ("7f3a" * 4)
    (folder / "bin").mkdir(parents=True)
    if ready is not None:
        (folder / "READY").write_text(ready)
    wanted = {"root": str(bench.root), "id": folder.name, "purged": False, "cuda": None}
    return {"building": {**wanted, **more}, "python": bench.python}


def test_the_variables_of_an_environments_scripts_are_there(bench: Bench):
    ready = '{"told": {"set": {"MINE": "by a script", "CONDA_PREFIX": "/x"}}}'
    job, _ = bench.run(ENV, **built(bench, ready))

    assert job.value() == "by a script"


def test_a_second_script_of_a_job_leaves_no_worker_behind(bench: Bench, tmp_path: Path):
    job = bench.job(f"def f():\n    with open({str(tmp_path / 'ran')!r}, 'a') as file:\n        file.write('x')\n")

    for script in [job.start() for _ in range(2)]:
        script.wait(150)

    assert (tmp_path / "ran").read_text() == "x" and job.tagged() == []


def test_what_the_function_prints_has_its_files_before_it_begins(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It begins at once, and may lock or remove its folder while the supervisor is still busy."""
    begun = "        late = worker.begin(cwd, env, cpus, self.job.held.worker_fds())\n"
    slow = ("supervisor/run.py", begun, f"{begun}        time.sleep(1)\n")
    monkeypatch.setattr(bench, "bridge", layout_bridge(tmp_path / "slow", slow))
    locks = "def f():\n    import os\n    os.chmod(os.path.abspath('..'), 0)\n    print('said')\n    return 'value'\n"
    job = bench.job(locks)

    job.start(before=obey_modes).wait(150)

    assert (job.outcome()["kind"], job.value(), job.output()) == ("returned", "value", "said\n")


@pytest.mark.parametrize(("ready", "more"), [(None, {}), ("{", {}), ("{}", {"purged": True})])
def test_an_environment_that_is_not_there_has_no_template(bench: Bench, ready: str | None, more: dict[str, object]):
    assert start_template(bench, built(bench, ready, **more)) == 1


def test_an_environment_of_somebody_else_has_no_template(bench: Bench, as_root: None):
    spec = built(bench, "{}")
    os.chown(bench.root / "envs" / ("7f3a" * 4) / "READY", 4242, 4242)

    assert start_template(bench, spec) == 1


def start_template(bench: Bench, spec: dict[str, object]) -> int:
    folder = bench.job(ENV, **spec).folder
    argv = [sys.executable, "-I", "-S", str(bench.bridge / "supervise.py"), "template", str(folder)]
    # A template waits for orders until its socket is closed.
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=150, check=False).returncode
