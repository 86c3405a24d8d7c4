"""How much of itself the supervisor loads for a plain job: every module costs each job time before it starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.bridge.host import Bench

MOST = 32
SLOW = (
    "ctypes", "socket", "subprocess", "re", "json", "enum", "signal", "collections", "contextlib", "functools",
    "hashlib", "threading",
)  # fmt: skip


def test_a_plain_job_loads_few_modules_of_the_supervisor(bench: Bench):
    job = bench.job("def f():\n    return 1\n")
    script = job.folder / "job.sh"
    script.write_text(script.read_text().replace(" -I -S ", " -I -S -X importtime ", 1))

    assert job.run()["kind"] == "returned"
    loaded = set(re.findall(r"\| +_clusterfn\.bridge\.([\w.]+)$", job.log(), re.MULTILINE))
    modules = loaded - {"supervisor", "queue", "agent", "schedulers"}  # packages, which are empty
    slow = re.findall(rf"\| +({'|'.join(SLOW)})$", job.log(), re.MULTILINE)

    assert "supervisor.run" in modules
    assert len(modules) <= MOST, "\n".join(sorted(modules))
    assert not slow


def test_a_worker_is_started_before_anything_slow_is_loaded(bridge: Path):
    """Each of these takes as long as all that comes before; a worker waits for them on every job."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from _clusterfn.bridge.supervisor import early_start\n"
        "from _clusterfn.bridge.builder import errors, leases, permissions\n"
        "print(*sorted({'re', 'json', 'enum', 'signal', 'ctypes', 'socket', 'subprocess'} & set(sys.modules)))\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", program, str(bridge)]

    assert subprocess.run(argv, capture_output=True, text=True, check=True, timeout=150).stdout == "\n"
