"""Every Python that may call, with every Python that a host may have: the whole of a call."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.lab

CALLERS = ("3.9", "3.10", "3.11", "3.12", "3.13")
HOSTS = ("3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
USUAL = {("3.13", "3.6")}  # of 3.9, tests/e2e/test_minors.py has one
PAIRS = [
    pytest.param(caller, host, marks=() if (caller, host) in USUAL else pytest.mark.long, id=f"{caller}-on-{host}")
    for caller in CALLERS
    for host in HOSTS
]

SCRIPT = """
from __future__ import annotations
import asyncio, json, sys
from dataclasses import dataclass
import clusterfn
from clusterfn import cluster

FACTOR = 3

@dataclass
class Point:
    x: int
    label: str = "p"

def helper(n):
    return n * FACTOR

@cluster(host=sys.argv[1])
def whole(point: Point, *rest, **more):
    import os, subprocess, sys
    print("printed: äöü", point)
    print("to stderr", file=sys.stderr)
    child = subprocess.run(["python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                           stdout=subprocess.PIPE, check=True)
    open("left.txt", "w").close()
    numbers = [n * n for n in rest if (m := n) > 1]
    return Point(helper(point.x) + len(more)), numbers, child.stdout.decode().strip(), bytes(2 << 20)

@cluster(host=sys.argv[1])
def fails():
    try:
        {}["inner"]
    except KeyError as error:
        raise ValueError("outer") from error

async def wait_for(job):
    return await job

point, numbers, version, large = whole(Point(5), 1, 2, 3, a=1)
assert type(point) is Point and point == Point(16), point
assert numbers == [4, 9] and version == "%d.%d" % sys.version_info[:2], (numbers, version)
assert large == bytes(2 << 20)
try:
    fails()
except ValueError as error:
    assert str(error) == "outer" and isinstance(error.__cause__, KeyError), error
else:
    raise AssertionError("nothing was raised")
jobs = [whole.submit(Point(n)) for n in range(3)]
assert [asyncio.run(wait_for(job))[0].x for job in jobs] == [0, 3, 6]
assert [file.name for file in jobs[0].files] == ["left.txt"]
again = clusterfn.attach(jobs[0].id).result(150)[0]
assert type(again) is Point and jobs[0].logs() == "printed: äöü Point(x=0, label='p')\\n"
assert jobs[0].id in {info.id for info in clusterfn.jobs(sys.argv[1])}
assert whole.local(Point(1))[0] == Point(3)
with clusterfn.Executor(sys.argv[1]) as executor:
    assert list(executor.map(lambda n: n + 1, [1, 2])) == [2, 3]
stopped = whole.submit(Point(1))
assert stopped.cancel() in (True, False)
print(json.dumps("whole"))
"""


def host_name(minor):
    return f"py{minor.replace('.', '')}"


@pytest.mark.parametrize(("minor", "host"), PAIRS)
def test_a_whole_call(hosts, lab, caller, run_script, tmp_path, monkeypatch, minor, host):
    python = caller(minor)
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", lab.python(minor), "", (host_name(host),))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    assert run_script(SCRIPT, host_name(host), python=python) == "whole"
