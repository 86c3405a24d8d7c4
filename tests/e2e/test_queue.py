"""Jobs that wait on a server without a scheduler, as their sender, another client and the command line see them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import clusterfn
from clusterfn import MapError, Unsatisfiable, cluster
from tests.programs import main
from tests.waiting import until

pytestmark = pytest.mark.lab

ATTACHES = """
import json, sys, time
import clusterfn
job = clusterfn.attach(sys.argv[1], host=sys.argv[2])
until = time.monotonic() + 60
while not job.reason and time.monotonic() < until:
    time.sleep(0.05)
print(json.dumps([job.state, job.reason]))
"""


def hold(seconds, n=0):
    time.sleep(seconds)
    return n * n


@pytest.fixture
def box(own_box, lab, hosts, tmp_path, monkeypatch):
    """A server of eight cards that nobody else uses, by cfbash's name for it; and clusterfn.yml."""
    monkeypatch.setattr(hold, "__module__", "__main__")
    names = (own_box.alias("cfbash"), own_box.alias("cfsecond"))
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=names)
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    yield names[0], path
    shutil.rmtree(lab.home("second") / hosts.root.name, ignore_errors=True)


@pytest.fixture
def full(box):
    """The server's name; all its cards are held until the test ends."""
    holder = cluster(host=box[0], gpus=8)(hold).submit(600.0)
    until(lambda: holder.state == "RUNNING")
    yield box[0], holder
    holder.stop()
    until(holder.done)


def began():
    """Return whether this call was forked, when it began, and its variables but for its own."""
    own = ("CLUSTERFN_", "PWD", "OLDPWD", "CUDA_VISIBLE_DEVICES")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return "\0jobs\0" in Path("/proc/self/cmdline").read_text(), time.time(), variables


def test_jobs_that_wait_keep_their_order_and_their_variables(box, monkeypatch):
    monkeypatch.setattr(began, "__module__", "__main__")
    call = cluster(host=box[0], gpus=8)(began)
    _, _, alone = call()
    until(lambda: call()[0])
    holder = cluster(host=box[0], gpus=8)(hold).submit(600.0)
    until(lambda: holder.state == "RUNNING")
    jobs = [call.submit() for _ in range(8)]
    until(lambda: all(job.reason for job in jobs))
    holder.stop()

    found = [job.result() for job in jobs]

    assert [each[1] for each in found] == sorted(each[1] for each in found)
    assert [each[2] for each in found] == [alone] * 8


HELD = "8 of 8 GPUs held by you (8); waiting for 1"


def test_a_job_that_waits_says_why_here_in_the_list_and_to_another_client(full, run_script, capsys):
    job = cluster(host=full[0], gpus=1)(hold).submit(0.0, 3)

    until(lambda: job.reason == HELD)
    assert job.state == "PENDING"
    assert run_script(ATTACHES, job.id, full[0]) == ["PENDING", HELD]
    assert [(told.state, told.message) for told in clusterfn.jobs(full[0]) if told.id == job.id] == [("PENDING", HELD)]
    assert main(["jobs", full[0]]) == 0
    assert HELD in capsys.readouterr().out

    full[1].stop()
    assert job.result(150) == 9


def shown(capsys, *words):
    """What a command prints."""
    assert main(list(words)) == 0
    return capsys.readouterr().out


def waiting_users(top: str) -> list[str]:
    return [line.split()[0] for line in top.splitlines() if "PENDING" in line and line.startswith("cf")]


def test_who_waits_behind_another_user_reads_for_whom_the_free_gpus_are_kept(box, own_box, capsys):
    mine = cluster(host=box[0], gpus=4)(hold).submit(600.0)
    until(lambda: mine.state == "RUNNING")
    theirs = cluster(host=own_box.alias("cfsecond"), gpus=8)(hold).submit(0.0)
    until(lambda: "cfsecond" in shown(capsys, "gpus", box[0]))
    until(lambda: theirs.reason == "4 of 8 GPUs held by cfbash (4); waiting for 8")

    job = cluster(host=box[0], gpus=1)(hold).submit(0.0, 2)

    kept = "the others reserved for cfsecond's earlier 8-GPU job; waiting for 1; 1 job before it"
    why = "cfsecond is next, who holds nothing (you: 4 GPUs and "
    until(lambda: job.status.startswith(f"PENDING (4 of 8 GPUs held by you (4), {kept}; {why}"))
    until(lambda: "cfsecond is next" in shown(capsys, "jobs", box[0]))
    # The job's reason is older than the name by which other users see it: its spooler may only just have started.
    until(lambda: waiting_users(shown(capsys, "top", box[0])) == ["cfsecond", "cfbash"])
    mine.stop()
    assert (theirs.result(150), job.result(150)) == (0, 4)


def test_a_group_waits_and_starts_with_its_turn(full, capsys):
    """Until then each command says who is next and why, as of a single call."""
    group = cluster(host=full[0], gpus=2)(hold).map([0.0] * 4, range(4))
    why = "8 of 8 GPUs held by you (8); waiting for 2"
    until(lambda: why in group.status)

    assert f"0 of 4 ended; {why}" in shown(capsys, "jobs", full[0])
    assert f"\n1  you: hold ({group.id[:4]})  " in (told := shown(capsys, "gpus", full[0])) and why in told
    until(lambda: f"cfbash is next with {group.id}.1" in shown(capsys, "top", full[0]))

    full[1].stop()

    assert group.results(150) == [0, 1, 4, 9]


def test_a_group_whose_time_in_the_queue_is_over_says_so_and_is_not_started_again(full, box, hosts, capsys):
    name, path = box
    path.write_text(path.read_text().replace("scheduler: bare", "scheduler: bare\n    queue_timeout: 1s"))

    group = cluster(host=name, gpus=4)(hold).map([0.0] * 2, range(2))
    with pytest.raises(MapError, match="its turn did not come within the 1 s of queue_timeout: 8 of 8 GPUs held by"):
        group.results(150)

    assert [type(error) for error in group.failed.values()] == [Unsatisfiable] * 2
    assert "more elements" not in capsys.readouterr().err
    begun = {path.name for path in hosts.root.glob(f"jobs/{group.id}/elements/*")}
    assert len(begun) == 3 and {"1", "2"} < begun, "two that waited, and one that told of the items"


def test_more_than_all_ones_jobs_may_have_is_refused_before_anything_is_sent(box, hosts):
    name, path = box
    path.write_text(path.read_text().replace("limits: {cores: 64}", "limits: {cores: 64, gpus: 2}"))
    before = hosts.jobs()

    with pytest.raises(Unsatisfiable, match=f"gpus=3 is more than all your jobs on {name} may have: 2") as caught:
        cluster(host=name, gpus=3)(hold)(0.0)

    assert hosts.jobs() == before
    assert "limits: {gpus: …}" in caught.value.hint
