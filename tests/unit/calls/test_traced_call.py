"""How many modules of the client one warm local call enters: those that a reader has to know to follow it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MOST = 46
SCRIPT = """
import json, sys, threading
from pathlib import Path

import clusterfn

library, steps = str(Path(clusterfn.__file__).parent), []

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(library):
        steps.append((threading.current_thread().name, code.co_filename[len(library) + 1 :], code.co_name))

threading.setprofile(note)
sys.setprofile(note)
double = clusterfn.cluster(host="here")(lambda x: 2 * x)
double(1)
# On a busy machine a call says that it waits.
for _ in range(200):
    steps.clear()
    value = double(2)
    if len({file for _, file, _ in steps if not file.startswith("bridge")}) <= int(sys.argv[1]):
        break
sys.setprofile(None)
print(json.dumps([value, steps]))
"""
PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
THREADS = {"caller": "MainThread", "reader": "clusterfn-read-here", "loop": "clusterfn-loop"}


def trace(tmp_path: Path) -> list[list[str]]:
    """The thread, file and name of each function of ours that a warm call enters, in order."""
    config = tmp_path / "clusterfn.yml"
    config.write_text(f"hosts:\n  here: {{scheduler: local, root: {tmp_path / 'root'}, limits: {{cores: 64}}}}\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "script.py", str(MOST)], cwd=tmp_path, env={**os.environ, "CLUSTERFN_CONFIG": str(config)},
        capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    value, steps = json.loads(ran.stdout.splitlines()[-1])
    assert value == 4
    return list(steps)


@pytest.mark.skipif(sys.platform == "win32", reason="jobs run on Unix")
def test_a_warm_local_call_enters_few_modules_in_the_order_of_the_page(tmp_path: Path) -> None:
    steps = trace(tmp_path)
    entered = sorted({file for _, file, _ in steps if not file.startswith("bridge")})
    page = PAGE.read_text(encoding="utf-8").partition("## The sequence of a call on the client\n")[2]
    lines = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:4]] for line in lines]

    assert len(entered) <= MOST, "\n".join(entered)
    assert len(rows) >= 16
    for thread in dict.fromkeys(thread for thread, _, _ in rows):
        named = {name: each for each, name in THREADS.items()}
        names = iter([(file, name) for where, file, name in steps if named.get(where, "its own") == thread])
        left = [(file, name) for each, file, name in rows if each == thread and (file, name) not in names]
        assert not left, f"not in this order in the thread {thread!r}: {left}"
