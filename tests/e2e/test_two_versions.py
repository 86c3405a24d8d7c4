"""Two versions of clusterfn use one root side by side: each brings its own code, and reads the jobs of the other."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import KilledBySignal, WorkerLost, cluster
from tests.e2e.conftest import ON_SLURM, Hosts
from tests.waiting import until

pytestmark = pytest.mark.lab

Other = Callable[..., Any]
OTHERS = "0.0.9"
SCRIPT = """
import json, os, sys, time
import clusterfn
from clusterfn import cluster

def wait_for(path, value):
    print("waiting", flush=True)
    while not os.path.exists(path):
        time.sleep(0.1)
    return value

def divide(by):
    return 1 / by

def die():
    os.kill(os.getpid(), 9)

told = None
{body}
print(json.dumps([clusterfn.__version__, told]))
"""


def wait_for(path: str, value: Any) -> Any:
    import time

    print("waiting", flush=True)
    while not os.path.exists(path):
        time.sleep(0.1)
    return value


wait_for.__module__ = "__main__"


@pytest.fixture(scope="session")
def _other_version(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with a version whose agent and bridge have other bytes than this one's."""
    folder = tmp_path_factory.mktemp("other") / "installed"
    shutil.copytree(installed, folder)
    package = folder / "clusterfn"
    start = package / "__init__.py"
    start.write_text(start.read_text().replace(f'__version__ = "{clusterfn.__version__}"', f'__version__ = "{OTHERS}"'))
    for name in ("bridge/agent/server.py", "bridge/supervisor/main.py", "bridge/worker/execute.py"):
        with (package / name).open("a") as file:
            file.write(f"\nOF_VERSION = {OTHERS!r}\n")
    spec = package / "config" / "job_spec.py"
    text = spec.read_text()
    # Keys that nobody knows yet, at each level.
    for record in ("resources = {**self.resources._asdict(),", '"format": layout.FORMAT,'):
        assert record in text
        text = text.replace(record, record.replace("{**", '{"of_version": 1, **').replace('"f', '"of_version": 1, "f'))
    spec.write_text(text)
    return folder


@pytest.fixture
def other(_other_version: Path, tmp_path: Path) -> Other:
    """Run lines as a script of the other version; return what it puts into `told`."""

    def run(body: str) -> Any:
        path = tmp_path / f"other_{secrets.token_hex(4)}.py"
        path.write_text(SCRIPT.replace("{body}", body))
        env = {**os.environ, "PYTHONPATH": str(_other_version)}
        argv = [sys.executable, str(path)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        version, told = json.loads(done.stdout.splitlines()[-1])
        assert version == OTHERS
        return told

    return run


@pytest.fixture
def root(lab: Any, hosts: Hosts, lab_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root of the test's own on the lab's hosts."""
    made = Hosts(tmp_path / "clusterfn.yml", lab_root, str(lab_root), hosts.python)
    made.describe(lab, made.config, hosts.python, names=("tensor01", "slurm"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(made.config))
    yield lab_root
    for job in [each for host in ("tensor01", "slurm") for each in clusterfn.jobs(host)]:
        if job.state in ("PENDING", "RUNNING"):  # of a test that failed: its 33 cores would hold up all tests after it
            clusterfn.attach(job.id).stop()
            clusterfn.attach(job.id).exception(150)


def bridge_of(root: Path, job_id: str) -> str:
    return str(json.loads((root / "jobs" / job_id / "spec.json").read_text())["bridge"])


@ON_SLURM
def test_each_reads_follows_and_ends_what_the_other_has_sent(root: Path, other: Other, host: str) -> None:
    gate = root / "gate"
    ours = cluster(host=host)(wait_for).submit(str(gate), "ours")
    theirs = other(f"told = cluster(host={host!r})(wait_for).submit({str(gate)!r}, 'theirs').id")
    stopped = other(f"told = cluster(host={host!r})(wait_for).submit('/no/such/file', 0).id")

    assert {theirs, ours.id} <= {info.id for info in clusterfn.jobs(host)}
    assert {theirs, ours.id} <= set(other(f"told = [info.id for info in clusterfn.jobs({host!r})]"))
    job = clusterfn.attach(theirs)
    gate.touch()
    clusterfn.attach(stopped).stop()

    assert job.exception(250) is None, job.status
    assert job.result() == "theirs"
    assert job.logs() == "waiting\n"
    assert other(f"told = clusterfn.attach({ours.id!r}).result(150)") == "ours"
    assert until(lambda: clusterfn.attach(stopped).status.startswith("CANCELLED"))
    assert bridge_of(root, theirs) != bridge_of(root, ours.id)
    assert len(list((root / "bridge").iterdir())) == 2


def test_a_map_of_the_other_is_read_and_retried(root: Path, other: Other) -> None:
    body = "group = cluster(host='tensor01')(divide).map([1, 0], on_error='collect')\ngroup.wait(150)\ntold = group.id"
    group = clusterfn.attach(other(body))

    assert group.wait(150)
    assert group.result(0) == 1.0
    again = group.retry_failed()
    assert again.wait(150)
    assert isinstance(again.failed[1], ZeroDivisionError)


def test_their_jobs_wait_in_one_queue(root: Path, other: Other) -> None:
    # Two of these exceed the limit, which other tests' jobs count against: a lower limit would make all wait for those.
    first, second = root / "first", root / "second"
    ours = cluster(host="tensor01", cores=33)(wait_for).submit(str(first), 1)
    assert until(lambda: ours.status == "RUNNING")
    theirs = other(f"told = cluster(host='tensor01', cores=33)(wait_for).submit({str(second)!r}, 2).id")
    job = clusterfn.attach(theirs)
    assert until(lambda: "your own jobs" in job.status)  # no order is promised between two agents
    last = cluster(host="tensor01", cores=33)(wait_for).submit(str(second), 3)

    assert until(lambda: "your own jobs" in last.status)
    first.touch()
    assert ours.result(150) == 1
    assert until(lambda: job.status == "RUNNING")
    assert "PENDING" in last.status
    second.touch()

    assert (job.result(150), last.result(150)) == (2, 3)


def test_a_death_that_the_other_concludes_has_its_cause(root: Path, other: Other) -> None:
    died = other("told = cluster(host='tensor01')(die).submit().id")
    with pytest.raises(KilledBySignal):
        clusterfn.attach(died).result(150)

    theirs = other("told = cluster(host='tensor01')(wait_for).submit('/no/such/file', 0).id")
    job = clusterfn.attach(theirs)
    assert until(lambda: job.status == "RUNNING")
    folder = root / "jobs" / theirs
    script = int((folder / "started").read_text().split()[1])
    events = [json.loads(line) for line in (folder / "attempts" / "1" / "events.jsonl").read_text().splitlines()]
    supervisor = next(event["pid"] for event in events if event["event"] == "starting")
    for pid in {script, supervisor}:
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(WorkerLost):
        clusterfn.attach(theirs).result(300)
