"""How much of itself the supervisor loads for a plain job: every module costs each job time before it starts."""

from __future__ import annotations

import re

from tests.bridge.host import Bench

MOST = 32
SLOW = ("ctypes", "socket", "subprocess", "hashlib", "threading")


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
