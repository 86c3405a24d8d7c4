"""When a function is warned of its end, in a process of its own that gets the signals."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs run on hosts, which are no Windows machines")

PROGRAM = """
import os, signal
from types import SimpleNamespace
from clusterfn.bridge.worker.warning import EndWarning

came = []
warned = EndWarning(SimpleNamespace(deliver=lambda: came.append("warned")))
warned.prepare()
if {early}:
    os.kill(os.getpid(), signal.SIGTERM)

def function():
    before = list(came)
    os.kill(os.getpid(), signal.SIGTERM)
    return before, list(came)

print(*(warned.around(function) if {runs} else ()))
os.kill(os.getpid(), signal.SIGTERM)
print(came)
"""


@pytest.mark.parametrize(
    ("early", "runs", "prints"),
    [
        (True, True, "['warned'] ['warned']\n['warned']\n"),
        (False, True, "[] ['warned']\n['warned']\n"),
        (True, False, "\n[]\n"),
    ],
)
def test_a_function_is_warned_once_and_only_while_it_runs(early: bool, runs: bool, prints: str):
    program = PROGRAM.format(early=early, runs=runs)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == prints
