"""A call of a decorated function while a file is imported: each import would repeat it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import clusterfn
from tests.programs import main

SINGLE = "from clusterfn import cluster\n@cluster\ndef f(x=1):\n    return x\n"


def run(tmp_path: Path, code: str, in_job: bool = True) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(clusterfn.__file__).parents[1]}"}
    env = {**env, "CLUSTERFN_JOB": "7f3a000011112222/1"} if in_job else env
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=150, env=env, cwd=tmp_path, check=False)


@pytest.mark.parametrize(
    "send",
    [
        "cluster(abs)(-1)", "cluster(abs).submit(-1)", "cluster(abs).map([-1])", "Executor().submit(abs, -1)",
        "Session().call(abs, -1)", "sweep(cluster(abs), {'x': [1]})",
    ],
    ids=["call", "submit", "map", "executor", "session", "sweep"],
)  # fmt: skip
def test_nothing_is_sent_while_a_command_imports_its_target(send, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    name = f"train_by_{tmp_path.name.translate({ord('-'): '_', ord('['): '_', ord(']'): '_'})}"
    (tmp_path / f"{name}.py").write_text(f"from clusterfn import *\n{SINGLE}{send}\n")

    assert main(["script", f"{tmp_path}/{name}.py::f"]) == 2
    said = capsys.readouterr().err
    assert f"{name}.py calls a decorated function while it is imported" in said
    assert 'if __name__ == "__main__":' in said


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": f"{SINGLE}f()\n"},
        {"train.py": f"{SINGLE}f.local(1)\ndef g():\n    return f()\nVALUE = [g() for _ in range(1)]\n"},
        {"single.py": SINGLE, "train.py": "from single import f\nclass Config:\n    value = f()\n"},
        {"single.py": SINGLE, "helper.py": "from single import f\nf()\n", "train.py": "import helper\n"},
        {"train.py": f"{SINGLE}from clusterfn import Session\nSession().call(f, 1)\n"},
    ],
    ids=["itself", "by a function", "in a class", "of a helper", "session"],
)
def test_in_a_job_a_call_at_import_is_an_error_that_says_where(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    done = run(tmp_path, "import train")

    assert done.returncode == 1 and "while a job imports it" in done.stderr
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr


def test_in_a_job_calls_of_functions_and_of_its_main_program_run_there(tmp_path):
    (tmp_path / "single.py").write_text(f"{SINGLE}def g():\n    return f(2)\n")

    done = run(tmp_path, "import single\nprint(single.f(), single.g(), single.f.local(3))")

    assert (done.stdout, done.stderr) == ("1 2 3\n", "")


@pytest.mark.parametrize("in_job", [False, True])
def test_a_spawned_process_does_not_repeat_the_calls_of_its_parent(tmp_path, in_job):
    code = f"{SINGLE}import multiprocessing, sys\n" + (
        "if __name__ == '__mp_main__':\n    f()\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n"
    )
    (tmp_path / "script.py").write_text(code)
    env = {**os.environ, "CLUSTERFN_CONFIG": str(tmp_path / "clusterfn.yml")}
    env = {**env, "CLUSTERFN_JOB": "7f3a000011112222/1"} if in_job else env

    argv = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, env=env, check=False)

    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr, done.stderr
    assert "ConfigError" in done.stderr


def test_a_process_that_is_started_by_another_may_call_once_it_runs(tmp_path):
    code = f"{SINGLE}import multiprocessing, sys\n" + (
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('fork').Process(target=f)\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n"
    )

    assert run(tmp_path, code).returncode == 0
