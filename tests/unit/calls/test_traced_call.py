"""How many modules of the client one warm local call enters: those that a reader has to know to follow it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MOST = 35
SCRIPT = """
import json, sys, threading
from pathlib import Path

import clusterfn

library, entered = str(Path(clusterfn.__file__).parent), set()

def note(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(library):
        entered.add(frame.f_code.co_filename[len(library) + 1 :])

threading.setprofile(note)
sys.setprofile(note)
double = clusterfn.cluster(host="here")(lambda x: 2 * x)
double(1)
entered.clear()
value = double(2)
sys.setprofile(None)
print(json.dumps([value, sorted(name for name in entered if not name.startswith("bridge"))]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="jobs run on Unix")
def test_a_warm_local_call_enters_few_modules(tmp_path: Path) -> None:
    config = tmp_path / "clusterfn.yml"
    config.write_text(f"hosts:\n  here: {{scheduler: local, root: {tmp_path / 'root'}}}\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "CLUSTERFN_CONFIG": str(config)},
        capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    value, entered = json.loads(ran.stdout.splitlines()[-1])

    assert value == 4
    assert len(entered) <= MOST, "\n".join(entered)
