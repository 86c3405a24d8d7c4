"""`clusterfn demo` shows what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")

# The demo whose lines wait until the first has been shown: on a busy machine all may come at the end.
DEMO = """
import os, sys
from clusterfn.cli import main, run

read, shown = run.read_template, os.environ["HOME"] + "/shown"
waits = f"until = time.monotonic() + 40\\n            while epoch and not os.path.exists({shown!r})"
waits += " and time.monotonic() < until: time.sleep(0.02)\\n            time.sleep(1)"
shows = f"os.makedirs({shown!r}, exist_ok=True); return len(text)"
run._DEMO_CONFIG, run._DEMO_PATIENCE_S = run._DEMO_CONFIG + "    limits: {{cores: 64}}\\n", 140
run.read_template = lambda name: read(name).replace("time.sleep(0.5)", waits).replace("return len(text)", shows)
sys.exit(main(["demo"]))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("demo")
    places = {"TMPDIR": str(folder / "tmp"), "HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "s")}
    for name in ("tmp", "home"):
        (folder / name).mkdir()
    argv, env = [sys.executable, "-c", DEMO], {**os.environ, **places}
    ran = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=150)
    return ran, folder


def test_everything_is_as_expected(shown):
    ran, _ = shown

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "NOT OK" not in ran.stdout


PROMISES = """average([3, 4, 8]) is 5.0
epoch 3, loss 0.25
caused by KeyError('lr')
total.txt came back; it holds 15
all three ran at the same time
KilledBySignal: the process that ran the function was ended by SIGKILL
What ran where
clusterfn check HOST"""


def test_it_shows_each_promise_and_the_code_of_each_part(shown):
    said = shown[0].stdout
    assert [promise for promise in PROMISES.splitlines() if promise not in said] == []
    assert said.count("  | def ") >= 5


def test_it_leaves_nothing_behind(shown):
    _, folder = shown

    assert [path for path in folder.rglob("*") if path.is_file()] == []
