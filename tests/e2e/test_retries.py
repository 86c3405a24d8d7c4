"""`retries=` as its user meets it: what passes costs a line, what stays is said once, with all before it."""

from __future__ import annotations

import os
import re

import pytest

import clusterfn
from clusterfn import ConfigError, TimeLimit, cluster
from tests.e2e.conftest import ON_SLURM
from tests.waiting import until

pytestmark = pytest.mark.lab


def flaky(failures, key="all"):
    """Fails with what a broken card says in its first attempts; the cards of all attempts."""
    from pathlib import Path

    path = Path(os.environ["CLUSTERFN_CHECKPOINT"], str(key))
    with path.open("a") as file:
        file.write(os.environ["CUDA_VISIBLE_DEVICES"] + "\n")
    cards = path.read_text().split("\n")[:-1]
    print("attempt", len(cards), "begins")
    if len(cards) <= failures:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nCompile with TORCH_USE_CUDA_DSA")
    return cards


def waiting(seconds):
    """Long in its first attempt, in no time in the next; which it is, and the pid of what watches over it."""
    import time
    from pathlib import Path

    path = Path(os.environ["CLUSTERFN_CHECKPOINT"], "watching")
    first = not path.exists()
    job = next(each for each in path.parents if (each / "spec.json").exists())
    files = [*job.glob("processes"), *job.glob("elements/*/processes")]  # of an item, in the folder of its element
    noted = [line for file in files for line in file.read_text().splitlines()]
    supervisors = [line.split()[2] for line in noted if line.startswith("supervisor")]
    path.with_suffix(".new").write_text(supervisors[-1])
    path.with_suffix(".new").replace(path)
    if first:
        time.sleep(seconds)
    return first


def beats():
    """For ever in its first attempt, else for three seconds: a line every few moments with the attempt and its node."""
    import time
    from pathlib import Path

    path, attempt = Path(os.environ["CLUSTERFN_CHECKPOINT"], "beats"), os.environ["CLUSTERFN_JOB"].rpartition("/")[2]
    until = time.monotonic() + (3 if attempt > "1" else 1000)
    while time.monotonic() < until:
        with path.open("a") as file:
            file.write(f"{attempt} {os.environ['SLURMD_NODENAME']}\n")
        time.sleep(0.01)
    return path.read_text().splitlines()


for travels_by_value in (flaky, waiting, beats):
    travels_by_value.__module__ = "__main__"


@pytest.fixture
def box(lab, hosts, tmp_path, monkeypatch):
    """The name of a host with eight cards that nobody else uses."""
    with lab.own_gpubox() as box:
        path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=(box.alias("cfbash"),))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
        yield box.alias("cfbash")


def test_a_call_hears_at_once_of_an_attempt_that_failed_and_returns_from_the_next(box, capsys):
    cards = cluster(host=box, gpus=1, retries=2)(flaky)(1)

    printed = capsys.readouterr()
    assert len(cards) == len(set(cards)) == 2, "the card that failed was passed over"
    failed = rf"attempt 1 failed on GPU {cards[0]} \(NVIDIA RTX A6000, GPU-[\w-]+\)"
    line = f"{failed}: RuntimeError: CUDA error: uncorrectable ECC error encountered; retried \\(1 of 2\\)"
    assert len(re.findall(line, printed.err)) == 1
    assert printed.out == "attempt 1 begins\nattempt 2 begins\n"


def test_the_last_error_names_the_attempts_before_it(hosts):
    job = cluster(host="tensor01", retries=1)(flaky).submit(5)

    error = job.exception(150)

    assert type(error) is RuntimeError
    told = "\n".join(error.__notes__)
    assert "attempt 1 failed on" in told and "this was the last of 2 attempts" in told
    again = clusterfn.attach(job.id)
    assert type(again.exception(150)) is RuntimeError
    assert again.notes == job.notes and "retried (1 of 1)" in job.notes[0]


def test_items_of_a_map_are_tried_again_by_themselves(hosts, capsys):
    group = cluster(host="tensor01", retries=1)(flaky).map([0, 1, 2], ["a", "b", "c"])

    results = group.results(timeout=150)

    assert [len(result) for result in results[:2]] == [1, 2]
    assert type(results[2]) is RuntimeError and "last of 2 attempts" in "\n".join(results[2].__notes__)
    assert "1, 'b': attempt 1 failed on" in capsys.readouterr().err


def test_slurm_is_asked_to_start_a_lost_node_s_job_again_and_tries_again_within_the_allocation(hosts, lab):
    job = cluster(host="slurm", retries=1, name="flakyonce")(flaky).submit(1)

    assert len(job.result(150)) == 2
    said = lab.slurm.run("scontrol", "--oneliner", "show", "job", "--all").stdout
    (line,) = [line for line in said.splitlines() if f"JobName=flakyonce.{job.id}" in line]
    assert "Requeue=1" in line and "Restarts=0" in line


@ON_SLURM
def test_a_job_that_ran_out_of_time_says_how_to_resume_it_and_the_next_one_begins_where_it_was(hosts, host):
    patient = cluster(host=host, time="10s")(waiting)
    with pytest.raises(TimeLimit) as caught:
        patient(1000)
    failed = caught.value.job

    assert f'it left a checkpoint: call again with resume="{failed[:4]}"' in caught.value.hint
    again = patient.with_options(resume=failed, time="2min")
    assert again(1000) is False and again.map([1000]).results() == [False]


def test_what_cannot_be_resumed_is_refused_before_anything_is_sent(hosts, tmp_path, monkeypatch):
    plain = cluster(host="tensor01")(abs)
    done, running = plain.submit(-1), cluster(host="tensor01")(waiting).submit(1000)
    done.result(150)
    until(lambda: running.state == "RUNNING")
    refused = {
        done.id: "left no checkpoint on tensor01",
        running.id: "that job is still running",
        "0000000000000000": "there is no such job on tensor01",
    }
    try:
        for job_id, words in refused.items():
            with pytest.raises(ConfigError, match=words):
                plain.with_options(resume=job_id)(-1)
    finally:
        running.stop()
    config = tmp_path / "elsewhere.yml"
    config.write_text(f"hosts:\n  here:\n    scheduler: local\n    root: {tmp_path / 'root'}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    with pytest.raises(ConfigError, match="there is no such job on here"):
        cluster(host="here", resume=done.id)(abs)(-1)
