"""`clusterfn gpus`: a shared server with two users, with nobody's processes and with a broken driver, and a cluster."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from clusterfn import cluster
from tests.programs import main
from tests.waiting import until

pytestmark = pytest.mark.lab


def rest():
    time.sleep(300)


rest.__module__ = "__main__"


@pytest.fixture
def box(own_box, lab, hosts, tmp_path, monkeypatch):
    """Eight cards that nobody else uses; the two names by which cfbash and cfsecond reach them."""
    names = (own_box.alias("cfbash"), own_box.alias("cfsecond"))
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=names)
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    with own_box.cards.kept():
        yield names
    shutil.rmtree(lab.home("second") / hosts.root.name, ignore_errors=True)


def started(job):
    until(lambda: job.state == "RUNNING")
    return job


def stopped(*jobs):
    for job in jobs:
        job.stop()
    for job in jobs:
        until(job.done)


def waiting_seen_by(host, capsys):
    assert main(["gpus", host, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    return told if told["waiting"] else None


def test_two_users_see_whose_each_gpu_is_and_who_waits(box, own_box, capsys):
    mine, theirs = box
    with own_box.cards.process(7, os.getpid(), name="/usr/bin/python3"):
        jobs = [started(cluster(host=mine, gpus=2)(rest).submit())]
        jobs.append(started(cluster(host=theirs, gpus=4)(rest).submit()))
        jobs.append(cluster(host=mine, gpus=3, name="eval")(rest).submit())
        until(lambda: "held by" in jobs[-1].reason)
        capsys.readouterr()

        assert main(["gpus", mine]) == 0
        shown = capsys.readouterr().out
        # Another user sees that it waits once its spooler has begun.
        told = until(lambda: waiting_seen_by(theirs, capsys))
        stopped(*jobs)

    lines = shown.splitlines()
    assert lines[0] == "1 of 8 GPUs free"
    held = [line.split(" %")[1].strip() for line in lines[3:11]]
    assert all(word.startswith(f"you: rest ({jobs[0].id[:4]}), ") for word in held[:2]), held
    assert held[2:7] == [*["cfsecond"] * 4, "free"]
    assert held[7].startswith("in use without a lease: python3 (pid ")
    waiting = " ".join(lines[-1].split())
    assert waiting.startswith(f"1 you: eval ({jobs[2].id[:4]}) 3 GPUs ") and "held by" in waiting
    assert [card["holder"] and card["holder"]["user"] for card in told["gpus"][:6]] == ["cfbash"] * 2 + ["cfsecond"] * 4
    assert [(each["user"], each["own"], each["asked"]["gpus"]) for each in told["waiting"]] == [("cfbash", False, 3)]


@pytest.mark.fault("50")
def test_a_broken_driver_is_reported_and_no_gpu_is_no_error(box, own_box, capsys):
    own_box.cards.set("nvml-mismatch")
    assert main(["gpus", box[0]]) == 1
    said = capsys.readouterr().err
    assert f"the GPUs of {box[0]} cannot be seen: nvidia-smi failed with exit code 18" in said
    assert "Driver/library version mismatch" in said and "run nvidia-smi on the host" in said

    own_box.cards.set("no-devices")
    assert main(["gpus", box[0]]) == 0
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "answer" not in line]
    assert said == f"clusterfn: no GPUs on {box[0]}: nvidia-smi is missing, or lists none"


@pytest.mark.fault("50")
@pytest.mark.long
def test_an_nvidia_smi_that_hangs_is_reported(box, own_box, capsys):
    own_box.cards.set("hang")
    assert main(["gpus", box[0]]) == 1
    assert "nvidia-smi did not answer within 30 s\n" in capsys.readouterr().err


def test_a_clusters_free_gpus_and_who_waits(hosts, capsys):
    running, waiting = (cluster(host="slurm", gpus=4, name=name)(rest).submit() for name in ("one", "two"))
    also = cluster(host="slurm", gpus=4, name="three")(rest).submit()
    until(lambda: [job.state for job in (running, waiting, also)].count("RUNNING") == 2)
    capsys.readouterr()

    assert main(["gpus", "slurm"]) == 0
    shown = capsys.readouterr().out
    assert main(["gpus", "slurm", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    stopped(running, waiting, also)

    assert shown.startswith("0 of 8 GPUs free\n")
    assert [(each["node"], each["total"], each["used"]) for each in told["nodes"]] == [("n1", 4, 4), ("n2", 4, 4)]
    mine = [each for each in told["waiting"] if each["own"] and each["wants"] == "gpu:4"]
    assert mine and mine[0]["name"].rpartition(".")[2] in {running.id, waiting.id, also.id}
    assert "you: " in shown.splitlines()[-1]
