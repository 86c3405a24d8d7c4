"""`f.map(group)`: each item starts when its own input has ended, and holds nothing before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import clusterfn
from clusterfn import Cancelled, DependencyFailed, cluster
from tests.e2e.conftest import ON_BARE, ON_SLURM
from tests.waiting import until

pytestmark = pytest.mark.lab


def hold(path, fails=False):
    import pathlib
    import time

    pathlib.Path(path + ".began").touch()
    while not os.path.exists(path):
        time.sleep(0.1)
    if fails:
        raise KeyError(path[-1])
    return path[-1]


def note(path, value, extra=None):
    import pathlib

    pathlib.Path(path).write_text(repr(value))
    return value if extra is None else (value, extra)


def total(*values):
    return sum(values)


for each in (hold, note, total):
    each.__module__ = "__main__"


def paths(gate: Path, name: str, count: int) -> list[str]:
    return [str(gate / f"{name}-{number}") for number in range(count)]


def failure(group: clusterfn.JobGroup, index: int) -> BaseException:
    """What an item raised, or why it never ran."""
    with pytest.raises(Exception) as raised:
        group.result(index, 150)
    return raised.value


def message(group: clusterfn.JobGroup, host: str) -> str:
    """What `clusterfn jobs` says of it; "" before it is on the host."""
    return next((job.message for job in clusterfn.jobs(host) if job.id == group.id), "")


@ON_SLURM
def test_an_item_runs_while_the_input_of_another_still_runs(hosts, host, gate):
    there = cluster(host=host, memory="200MB")
    go, did = paths(gate, "go", 3), paths(gate, "did", 3)
    models = there(hold).map(go, [False, True, False])
    scores = there(note).map(did, models, extra=there(total).submit(1, 2))
    until(lambda: "waiting for 3 of 3 items of hold" in message(scores, host))

    Path(go[2]).touch()
    until(lambda: Path(did[2]).exists())
    assert not models.done() and [Path(path).exists() for path in did] == [False, False, True]
    left = f"waiting for 2 of 3 items of hold ({models.id[:4]})"
    until(lambda: message(scores, host) == f"1 of 3 ended: 1 returned; {left}")
    Path(go[1]).touch()
    until(lambda: isinstance(failure(scores, 1), DependencyFailed))
    cause = failure(scores, 1).__cause__
    assert isinstance(cause, KeyError) and cause.args == ("1",) and not models.done()

    Path(go[0]).touch()
    assert [scores.result(index, 150) for index in (0, 2)] == [("0", 3), ("2", 3)]
    assert not Path(did[1]).exists() and models.results(150)[0] == "0"


@ON_BARE
def test_it_happens_without_the_client_that_has_sent_both(hosts, host, gate):
    argv = [sys.executable, str(Path(__file__).with_name("two_maps.py")), host, str(gate)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        models, scores = client.stdout.readline().split()
        until(lambda: (gate / "go-1.began").exists())
        client.send_signal(signal.SIGKILL)

    (gate / "go-0").touch()
    until(lambda: (gate / "did-0").exists())
    assert {job.id: job.state for job in clusterfn.jobs(host)}[models] == "RUNNING"
    (gate / "go-1").touch()
    assert clusterfn.attach(scores, host).results(150) == ["0", "1"]


@ON_BARE
def test_stopping_either_of_two_maps_leaves_the_other_alone(hosts, host, gate):
    there = cluster(host=host, memory="200MB")
    go = paths(gate, "go", 2)
    models = there(hold).map(go)
    stopped, others = (there(note).map(paths(gate, name, 2), models) for name in ("stopped", "did"))
    Path(go[0]).touch()
    until(lambda: (gate / "did-0").exists() and (gate / "stopped-0").exists())

    stopped.stop()
    assert isinstance(failure(stopped, 1), Cancelled) and not models.done()
    until(lambda: Path(go[1] + ".began").exists())
    models.stop()
    assert others.result(0, 150) == "0"
    failed = failure(others, 1)
    assert isinstance(failed, DependencyFailed) and isinstance(failed.__cause__, Cancelled)
    assert not (gate / "did-1").exists() and not (gate / "stopped-1").exists()


@ON_BARE
def test_separate_jobs_and_two_groups_start_items_too_and_failed_ones_are_retried(hosts, host, gate):
    there = cluster(host=host, memory="200MB")
    jobs = [there(hold).submit(path) for path in paths(gate, "job", 2)]
    models = there(hold).map(paths(gate, "go", 2))
    scores = there(note).map(paths(gate, "did", 2), models, jobs)
    (gate / "go-1").touch()
    (gate / "job-1").touch()
    until(lambda: (gate / "did-1").exists())
    assert not (gate / "did-0").exists()

    (gate / "did-0").mkdir()
    (gate / "go-0").touch()
    (gate / "job-0").touch()
    assert isinstance(failure(scores, 0), IsADirectoryError)
    (gate / "did-0").rmdir()
    assert scores.retry_failed().results(150) == [("0", "0"), ("1", "1")]
