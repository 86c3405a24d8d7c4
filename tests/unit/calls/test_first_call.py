"""The first call of a process: what is wrong with it is found before it connects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import sys
import clusterfn
from clusterfn.hosts.transports.base import ProcessStream

@clusterfn.cluster(host=HOST, OPTIONS)
def double(x):
    return 2 * x

"""


def run(tmp_path: Path, code: str, host: str = "here", options: str = "") -> str:
    config = tmp_path / "clusterfn.yml"
    config.write_text(
        f"hosts:\n  here: {{scheduler: local, root: {tmp_path}/root, environment: 'python:{sys.executable}'}}\n"
        f"  away: {{address: nobody@127.0.0.1:1, scheduler: bare, root: /tmp/none}}\n"
    )
    begin = BEGIN.replace("HOST", repr(host)).replace(", OPTIONS", options)
    ran = subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "CLUSTERFN_CONFIG": str(config), "XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_it_goes_to_this_machine_without_its_hosts_options_if_all_calls_do(tmp_path: Path):
    options = ", slurm={'partition': 'gpu'}, environment='python:/nowhere/python'"
    code = "import os; os.environ['CLUSTERFN_LOCAL'] = '1'; print(double(21))"
    assert run(tmp_path, code, "away", options) == "42"


@pytest.mark.parametrize(
    ("call", "options", "error"),
    [
        ("double()", "", "TypeError double() missing 1 required positional argument: 'x'"),
        ("double.submit(1, 2)", "", "TypeError double() takes 1 positional argument but 2 were given"),
        (
            "double.submit(1, priority=5)",
            "",
            "TypeError double() got an unexpected keyword argument 'priority'; "
            "priority= is an option of clusterfn: write @cluster(priority=…) or double.with_options(priority=…)",
        ),
        ("double(1)", ", slurm={'partition': 'gpu'}", "ConfigError slurm= is for hosts"),
        ("double(1)", "", "Unreachable"),
    ],
)
def test_what_is_wrong_with_it_is_found_before_it_connects(tmp_path: Path, call: str, options: str, error: str):
    code = f"try: {call}\nexcept Exception as error: print(type(error).__name__, error)"
    assert run(tmp_path, code, "away", options).startswith(error)


def test_ctrl_c_while_it_connects_says_that_nothing_runs(tmp_path: Path):
    code = "def stop(*_): raise KeyboardInterrupt\nProcessStream.write = stop\n"
    code += "sys.stderr = sys.stdout\ntry: double(1)\nexcept KeyboardInterrupt: print('interrupted')"
    said = run(tmp_path, code)
    assert "it was not sent, and nothing runs" in said
    assert said.endswith("interrupted")
