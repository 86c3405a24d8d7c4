"""What the worker's report hides, in a process of its own as the worker has one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("resource")

PROGRAM = """
import json, os
from clusterfn.bridge.worker.report import Report

report = Report(os.dup(1))
report.hide(["SHORT", "LONG", "MISSING"])
print(json.dumps(report.secrets))
"""


def test_of_secrets_of_which_one_begins_as_another_the_longest_is_masked_first():
    env = {**os.environ, "SHORT": "abcd", "LONG": "abcdef\nghijk\nl"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == ["abcdef\nghijk\nl", "abcdef", "ghijk", "abcd"]
