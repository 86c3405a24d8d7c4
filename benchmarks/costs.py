"""What it costs beside time on the path: the import, printing, memory, and what runs on the host."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Series, in_turns, seconds
from benchmarks.place import Place
from benchmarks.report import Row
from tests.bridge.apart import apart
from tests.bridge.host import Bench
from tests.bridge.layout import layout_bridge
from tests.lab.handle import Lab
from tests.waiting import until

_RETURNS, _SLEEPS = "def f():\n    return 1\n", "def f():\n    import time\n    time.sleep(3600)\n"
_ONE_JOB = {"jobs": 1}


def imports(place: Place) -> list[Row]:
    """The import of clusterfn in a fresh process: alone, which loads nothing, and with the decorator."""
    programs = {
        "nothing": "pass", "clusterfn": "import clusterfn", "cluster": "from clusterfn import cluster",
        "paramiko": "import paramiko",
    }  # fmt: skip
    parts = {
        name: lambda text=text: seconds(lambda: place.run([sys.executable, "-c", text]))
        for name, text in programs.items()
    }
    taken = in_turns(parts, 15)
    return [
        Row("python -c pass", taken["nothing"]),
        Row("python -c 'import clusterfn'", taken["clusterfn"], limit=60),
        Row.versus("python -c 'import clusterfn'", taken["clusterfn"], taken["nothing"], "python -c pass", limit=2.2),
        Row.versus("'from clusterfn import cluster'", taken["cluster"], taken["nothing"], "python -c pass"),
        Row("python -c 'import paramiko'", taken["paramiko"]),
    ]  # fmt: skip


def printing(place: Place, lab: Lab | None) -> list[Row]:
    """From a print on the host to the line here."""
    host = "bare" if lab else "here"
    delays = json.loads(place.run(place.script("prints.py", host)).stdout)
    return [Row(f"print there, seen here ({len(delays)} lines)", Series(tuple(delays)), limit=5)]


def beside(place: Place, lab: Lab | None) -> list[Row]:
    """What runs on the host beside the function."""
    told = json.loads(place.run(place.script("costs.py", "bare" if lab else "here")).stdout)
    sleeps = "agent's CPU in an hour with a job that sleeps, after its first 40 s"
    return [
        Row("agent's memory (RSS)", Series((told["agent_mb"],)), "MB", limit=25),
        Row("agent's CPU in an hour without a job", Series((told["agent_idle_s"],)), "s", limit=5),
        Row(sleeps, Series((told["agent_job_s"],)), "s", limit=5),
        Row("supervisor's CPU while the function sleeps", Series((told["idle_percent"],)), "%", limit=0.3),
        Row("supervisor's CPU while the function computes", Series((told["busy_percent"],)), "%", limit=0.3),
    ]


def on_host(place: Place) -> list[Row]:
    """CPU time that a job without a scheduler costs its host, and one that only gets a ticket because others wait."""
    alone = apart() if os.geteuid() == 0 else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, alone as namespace:
        bridge, old, new = layout_bridge(Path(folder, "bridge")), str(place.old), str(place.new)
        runs, waits = (Bench(Path(folder, name), bridge, old, new, namespace) for name in ("runs", "waits"))
        first = waits.job(_SLEEPS, limits=_ONE_JOB)
        first.start()
        until((first.attempt / "stdout").exists)
        taken = in_turns(
            {
                "python": lambda: _cpu_s(lambda: subprocess.run([old, "-I", "-S", "-c", "pass"], check=True)),
                "job": lambda: _cpu_s(runs.job(_RETURNS).run),
                "ticket": lambda: _cpu_s(lambda: waits.job(_RETURNS, limits=_ONE_JOB).start().wait()),
            },
            50,
        )
        (first.folder / "cancel").touch()
        waits.close()
    start = "python -I -S -c pass there"
    return [
        Row(f"{start}: CPU", taken["python"]),
        Row("a bare job: CPU on the host", taken["job"], limit=120),
        Row.versus("a bare job: CPU on the host", taken["job"], taken["python"], start),
        Row("a job that gets a ticket: CPU on the host", taken["ticket"], limit=35),
        Row.versus("a job that gets a ticket: CPU on the host", taken["ticket"], taken["python"], start),
    ]  # fmt: skip


def _cpu_s(work: Callable[[], object]) -> float:
    """How much CPU time the processes take that `work` starts, and that end before it does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
