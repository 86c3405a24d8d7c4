"""What `clusterfn top` costs the host and the line: at most 3 % of a core, and 20 KB in a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterfn import cluster
from clusterfn.cli import top
from clusterfn.hosts import connection
from tests.e2e.inside import session_of
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.long]
JOBS, FOR_S = 20, 60.0
MOST_OF_A_CORE, MOST_BYTES_PER_S = 0.03, 20_000


def rest() -> None:
    import time

    time.sleep(600)


rest.__module__ = "__main__"


@pytest.fixture
def bytes_came(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each piece that a program on the host has printed."""
    came: list[int] = []
    real = connection.HostConnection.converse

    def converse(self, argv, first, on_data, *rest):
        return real(self, argv, first, lambda data: (came.append(len(data)), on_data(data)), *rest)

    monkeypatch.setattr(connection.HostConnection, "converse", converse)
    return came


def looking() -> Iterator[int]:
    """Yield the processes that look, of whichever user."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"top" in words and any(word.endswith(b"supervise.py") for word in words):
            yield int(name)


def cpu_s(pid: int) -> float:
    """Of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("host", ["tensor01", "slurm"])
def test_a_screen_costs_little_with_many_jobs(host, hosts, bytes_came):
    before = set(looking())
    group = [cluster(host=host, memory="50MB")(rest).submit() for _ in range(JOBS if host == "tensor01" else 8)]
    try:
        until(lambda: all(job.state == "RUNNING" for job in group))
        session = session_of(host)
        looks: list[float] = []

        def watch() -> None:
            for _ in top.looks(session):
                looks.append(time.monotonic())

        threading.Thread(target=watch, daemon=True).start()
        until(lambda: len(looks) > 1)  # its start is over
        (pid,) = set(looking()) - before
        used, came, began, first = cpu_s(pid), sum(bytes_came), time.monotonic(), len(looks)
        time.sleep(FOR_S)
        took = time.monotonic() - began
        core, rate = (cpu_s(pid) - used) / took, (sum(bytes_came) - came) / took
    finally:
        for job in group:
            job.stop()
    print(
        f"{len(group)} jobs on {host}: {100 * core:.2f} % of a core, {rate:.0f} bytes a second, "
        f"a look each {took / max(1, len(looks) - first):.1f} s, load {os.getloadavg()[0]:.1f}"
    )
    assert core <= MOST_OF_A_CORE and rate <= MOST_BYTES_PER_S
