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
from tests.e2e.conftest import ON_BARE, ON_SLURM, give_to
from tests.waiting import until

pytestmark = pytest.mark.lab


def hold(path, fails=False):
    import os
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


@pytest.fixture
def folder(hosts):
    """A folder that jobs of the lab's user can write to, and no other test uses."""
    hosts.root.mkdir(mode=0o700, exist_ok=True)
    made = give_to("cfbash", hosts.root) / f"gate-{os.urandom(4).hex()}"
    made.mkdir()
    return give_to("cfbash", made)


def paths(folder: Path, name: str, count: int) -> list[str]:
    return [str(folder / f"{name}-{number}") for number in range(count)]


def failure(group: clusterfn.JobGroup, index: int) -> BaseException:
    """What an item raised, or why it never ran."""
    with pytest.raises(Exception) as raised:
        group.result(index, 150)
    return raised.value


def message(group: clusterfn.JobGroup, host: str) -> str:
    """What `clusterfn jobs` says of it; "" before it is on the host."""
    return next((job.message for job in clusterfn.jobs(host) if job.id == group.id), "")


@ON_SLURM
def test_an_item_runs_while_the_input_of_another_still_runs(hosts, host, folder):
    there = cluster(host=host, memory="200MB")
    go, did = paths(folder, "go", 3), paths(folder, "did", 3)
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
def test_it_happens_without_the_client_that_has_sent_both(hosts, host, folder):
    argv = [sys.executable, str(Path(__file__).with_name("two_maps.py")), host, str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        models, scores = client.stdout.readline().split()
        until(lambda: (folder / "go-1.began").exists())
        client.send_signal(signal.SIGKILL)

    (folder / "go-0").touch()
    until(lambda: (folder / "did-0").exists())
    assert {job.id: job.state for job in clusterfn.jobs(host)}[models] == "RUNNING"
    (folder / "go-1").touch()
    assert clusterfn.attach(scores, host).results(150) == ["0", "1"]


@ON_BARE
def test_stopping_either_of_two_maps_leaves_the_other_alone(hosts, host, folder):
    there = cluster(host=host, memory="200MB")
    go = paths(folder, "go", 2)
    models = there(hold).map(go)
    stopped, others = (there(note).map(paths(folder, name, 2), models) for name in ("stopped", "did"))
    Path(go[0]).touch()
    until(lambda: (folder / "did-0").exists() and (folder / "stopped-0").exists())

    stopped.stop()
    assert isinstance(failure(stopped, 1), Cancelled) and not models.done()
    until(lambda: Path(go[1] + ".began").exists())
    models.stop()
    assert others.result(0, 150) == "0"
    failed = failure(others, 1)
    assert isinstance(failed, DependencyFailed) and isinstance(failed.__cause__, Cancelled)
    assert not (folder / "did-1").exists() and not (folder / "stopped-1").exists()


@ON_BARE
def test_separate_jobs_and_two_groups_start_items_too_and_failed_ones_are_retried(hosts, host, folder):
    there = cluster(host=host, memory="200MB")
    jobs = [there(hold).submit(path) for path in paths(folder, "job", 2)]
    models = there(hold).map(paths(folder, "go", 2))
    scores = there(note).map(paths(folder, "did", 2), models, jobs)
    (folder / "go-1").touch()
    (folder / "job-1").touch()
    until(lambda: (folder / "did-1").exists())
    assert not (folder / "did-0").exists()

    (folder / "did-0").mkdir()
    (folder / "go-0").touch()
    (folder / "job-0").touch()
    assert isinstance(failure(scores, 0), IsADirectoryError)
    (folder / "did-0").rmdir()
    assert scores.retry_failed().results(150) == [("0", "0"), ("1", "1")]
