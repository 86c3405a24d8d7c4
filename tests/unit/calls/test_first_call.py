"""The first call of a process: it connects, and loads the rest meanwhile; what is wrong with it is found before."""

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

begun, first_answer, read = [], [], ProcessStream.read

def note(*each):
    first_answer[:] = first_answer or ["clusterfn.calls.call" in sys.modules]
    return read(*each)

ProcessStream.read = note

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


def test_it_loads_what_calls_need_while_the_agent_starts(tmp_path: Path):
    assert run(tmp_path, "print(double(21), first_answer)") == "42 [True]"


def test_it_goes_to_this_machine_without_its_hosts_options_if_all_calls_do(tmp_path: Path):
    options = ", slurm={'partition': 'gpu'}, environment='python:/nowhere/python'"
    code = "import os; os.environ['CLUSTERFN_LOCAL'] = '1'; print(double(21))"
    assert run(tmp_path, code, "away", options) == "42"


BROKEN = """
class Broken:
    def find_spec(self, name, *_):
        if name == "clusterfn.calls.submit":
            raise ERROR

def begin(self, *each):
    begun.append(1)
    start(self, *each)

start, ProcessStream.__init__ = ProcessStream.__init__, begin
sys.meta_path.insert(0, Broken())
for _ in range(2):
    try: double(1)
    except Exception as error: print(type(error).__name__, error)
print(len(begun))
"""


@pytest.mark.parametrize("error", ["ImportError('damaged')", "OSError(24, 'too many open files')"])
def test_what_cannot_be_loaded_is_no_fault_of_the_connection_which_stays(tmp_path: Path, error: str):
    *said, connections = run(tmp_path, BROKEN.replace("ERROR", error)).splitlines()
    shown = {"I": "ImportError damaged", "O": "OSError [Errno 24] too many open files"}[error[0]]
    assert (said, connections) == ([shown, shown], "1")


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
