"""`clusterfn move`: a root goes to another folder of its host, and everything that was there is found again."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import File, HostError, cluster
from clusterfn.cli import main
from tests.e2e.conftest import BOTH, ON_BARE, Hosts
from tests.waiting import until

pytestmark = pytest.mark.lab

LARGE = b"x" * (3 << 20)  # too large to travel in the call itself


@dataclass(frozen=True)
class Place:
    """Hosts of the lab with a root of the test's own, and another place to which it can move.

    Attributes:
        other: A clusterfn.yml that another copy of the project has, with the first root.
    """

    config: Path
    other: Path
    root: Path
    new: Path


@pytest.fixture
def place(lab: Any, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    name = f"e2e-{secrets.token_hex(4)}"
    root, new = lab.home("bash") / name, lab.home("bash") / f"{name}-moved"
    config, other = tmp_path / "clusterfn.yml", tmp_path / "other" / "clusterfn.yml"
    other.parent.mkdir()
    made = Hosts(config, root, str(root), hosts.python)
    for path in (config, other):
        made.describe(lab, path, hosts.python, names=("tensor01", "slurm"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    yield Place(config, other, root, new)
    for path in (root, new):
        shutil.rmtree(path, ignore_errors=True)


def keep_and_count(data: bytes, file: str) -> tuple[int, str]:
    (clusterfn.checkpoint() / "state").write_text("seen")
    print("counting")
    return len(data), Path(file).read_text()


def double(value: Any) -> Any:
    return 2 * value


def fail_at_two(value: int, without: str) -> int:
    if value == 2 and not Path(without).exists():
        raise ValueError("two")
    return value


def wait_for(path: str) -> str:
    import time

    while not os.path.exists(path):
        time.sleep(0.1)
    return "done"


for each in (keep_and_count, double, fail_at_two, wait_for):
    each.__module__ = "__main__"


def move(place: Place, host: str = "tensor01", to: Path | None = None) -> int:
    return main(["move", host, str(to or place.new)])


def command(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a program of its own."""
    env = {**os.environ, "CLUSTERFN_CONFIG": str(config)}
    argv = [sys.executable, "-m", "clusterfn", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@BOTH
def test_jobs_attach_with_all_that_they_had(place: Place, host: str, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("of the file")
    job = cluster(host=host)(keep_and_count).submit(LARGE, File(tmp_path / "data.txt"))
    assert job.result(150) == (len(LARGE), "of the file")
    kept = cluster(host=host, keep=True)(double).submit(21)
    assert until(kept.done)
    group = cluster(host=host)(fail_at_two).map([1, 2, 3], without=str(place.new), on_error="collect")
    assert group.wait(150)

    assert move(place, host) == 0

    again = clusterfn.attach(job.id)
    assert again.result(150) == (len(LARGE), "of the file")
    assert again.logs() == "counting\n"
    assert [file.name for file in again.checkpoint.files] == ["state"]
    assert cluster(host=host)(double)(clusterfn.attach(kept.id)) == 84
    assert cluster(host=host, resume=job.id)(double)(1) == 2
    retried = clusterfn.attach(group.id).retry_failed()
    assert retried.results(150) == [1, 2, 3]
    assert {info.id for info in clusterfn.jobs(host)} >= {job.id, kept.id, group.id}


@BOTH
def test_calls_go_to_the_new_root_and_the_old_one_says_where_it_is(place: Place, host: str) -> None:
    call = cluster(host=host)(double)
    assert call(1) == 2

    assert move(place, host) == 0

    assert f"root: {place.new}" in place.config.read_text()
    assert call(LARGE) == LARGE * 2
    assert sorted(path.name for path in place.root.iterdir()) == ["jobs", "moved"]
    told = command(place.other, "jobs", host)
    assert told.returncode == 1
    assert f"The root {place.root} on {host} cannot be used: it has moved to {place.new}" in told.stderr
    assert f"set root: of host {host} ({place.other}:" in told.stderr


@BOTH
def test_a_job_that_waits_or_runs_is_named_and_stays(
    place: Place, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = place.root / "gate"
    job = cluster(host=host)(wait_for).submit(str(gate))
    assert until(lambda: job.status == "RUNNING")

    assert move(place, host) == 1

    told = capsys.readouterr().err
    assert "1 job waits or runs below" in told
    assert f"{job.id} wait_for RUNNING" in told
    assert not place.new.exists()
    gate.touch()
    assert job.result(150) == "done"


def test_a_program_with_an_open_connection_cannot_put_a_job_into_the_old_root(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(place.other))
    call = cluster(host="tensor01")(double)
    assert call(1) == 2
    assert command(place.config, "move", "tensor01", str(place.new)).returncode == 0

    with pytest.raises(HostError, match="moved to"):
        call(2)

    assert list((place.root / "jobs").iterdir()) == []


def test_another_file_system_gets_copies(place: Place) -> None:
    call = cluster(host="tensor01")(double)
    job = call.submit(LARGE)
    assert job.result(150) == LARGE * 2
    away = Path("/dev/shm") / place.new.name
    assert os.stat("/dev/shm").st_dev != os.stat(place.root).st_dev

    try:
        assert move(place, to=away) == 0
        assert clusterfn.attach(job.id).result(150) == LARGE * 2
        assert call(3) == 6
        assert move(place) == 0
        assert clusterfn.attach(job.id).result(150) == LARGE * 2
    finally:
        shutil.rmtree(away, ignore_errors=True)


@ON_BARE
def test_a_move_that_is_killed_continues(place: Place, host: str) -> None:
    call = cluster(host=host)(double)
    job = call.submit(LARGE)
    assert job.result(150) == LARGE * 2
    argv = [sys.executable, "-m", "clusterfn", "move", host, str(place.new)]
    with subprocess.Popen(argv) as client:
        until(lambda: (place.new / "moving").exists() or client.poll() is not None)
        client.send_signal(signal.SIGKILL)

    assert until(lambda: move(place, host) == 0)

    assert clusterfn.attach(job.id).result(150) == LARGE * 2
    assert f"root: {place.new}" in place.config.read_text()
    assert call(1) == 2


def test_json_says_what_was_moved(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster(host="tensor01")(double)(1) == 2
    capsys.readouterr()

    assert main(["move", "tensor01", str(place.new), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["from"], told["root"], told["left"]) == (str(place.root), str(place.new), [])
    assert told["written"] is True
    assert told["files"] > 10


def test_environments_inside_the_root_by_their_own_key_are_refused(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"    root: {place.root}\n"
    place.config.write_text(place.config.read_text().replace(root, f"{root}    env_root: {place.root}/envs\n"))

    assert move(place) == 1
    assert "remove env_root: from that host" in capsys.readouterr().err
