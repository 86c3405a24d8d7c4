"""Jobs as arguments of other calls: their values stay on the host, a failure is handed on, and no client need wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import Cancelled, DependencyFailed, KilledBySignal, PayloadError, cluster
from tests.e2e.conftest import ON_BARE, ON_SLURM
from tests.fixtures.pair import Pair
from tests.lab import Lab
from tests.programs import main
from tests.waiting import until

pytestmark = pytest.mark.lab


def train(x):
    return {"loss": x * 2, "weights": [x] * 3}


def total(*values):
    return sum(values)


def look_into(pair, many, extra=None):
    return pair.left + pair.right, [each["loss"] for each in many], many[0] is extra


def loss_of(model):
    return model["loss"]


def fail(x):
    raise KeyError(f"no {x}")


def die():
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def wait_for(path, value=None):
    import time

    while not os.path.exists(path):
        time.sleep(0.1)
    return value


def look_at(model, other):
    return model["loss"]


def note(path, value=None):
    import pathlib

    pathlib.Path(path).write_text(repr(value))
    return value


for each in (train, total, look_into, loss_of, fail, die, wait_for, look_at, note):
    each.__module__ = "__main__"


@ON_BARE
def test_a_call_gets_the_values_of_jobs_and_parts_of_them_wherever_they_are_among_its_arguments(hosts, host):
    there = cluster(host=host)
    one, two = there(train).submit(1), there(train).submit(2)

    added = there(total).submit(one["loss"], two["weights"][-1], 10)
    seen = there(look_into).submit(Pair(added, one["loss"]), [two, one], extra=two)

    assert seen.result(150) == (14 + 2, [4, 2], True)
    assert added.result(150) == 14


@ON_BARE
def test_a_group_is_the_list_of_its_values_and_is_mapped_over_item_by_item(hosts, host):
    there = cluster(host=host)
    models = there(train).map([1, 2, 3])

    losses = there(loss_of).map(models)
    best = there(total).submit(losses[0], losses[2])
    every = there(len).submit(models)

    assert losses.results(150) == [2, 4, 6]
    assert (best.result(150), every.result(150)) == (8, 3)


@ON_SLURM
def test_what_depends_on_a_failed_job_never_runs_and_names_the_first_failure(hosts, host, gate):
    there = cluster(host=host)
    failed = there(fail).submit("data")
    second = there(note).submit(str(gate / "second"), failed)
    third = there(note).submit(str(gate / "third"), [second])

    with pytest.raises(DependencyFailed, match=r"fail \([0-9a-f]{4}\) has no value: KeyError: 'no data'") as direct:
        second.result(150)
    with pytest.raises(DependencyFailed, match=r"note \([0-9a-f]{4}\) never ran, because fail \(") as indirect:
        third.result(150)

    assert repr(direct.value.__cause__) == repr(failed.exception()) and direct.value.stage == "queue"
    assert isinstance(indirect.value.__cause__, KeyError) and indirect.value.__cause__.args == ("no data",)
    assert list(gate.iterdir()) == []
    attached = clusterfn.attach(third.id, host).exception(150)
    assert isinstance(attached, DependencyFailed) and isinstance(attached.__cause__, KeyError)


@ON_BARE
def test_a_job_that_died_is_the_cause_too_and_items_fail_one_by_one(hosts, host):
    there = cluster(host=host)
    died = there(die).submit()
    items = there(total).map([died, 1, died])

    results = items.results(150)
    assert [type(each) for each in results] == [DependencyFailed, int, DependencyFailed]
    assert isinstance(results[0].__cause__, KilledBySignal)
    assert results[1] == 1


@ON_SLURM
def test_it_waits_on_the_host_without_its_client(lab, hosts, host, gate):
    """A diamond whose client is killed as soon as it has sent all."""
    assert outlives_its_client(lab, host, 8, gate / "go").result(150) == 8 + sum(range(8))


def outlives_its_client(lab: Lab, host: str, width: int, gate: Path) -> Any:
    """Have a diamond of so many jobs sent, kill its client, let the first job return, and attach to the last."""
    argv = [sys.executable, str(Path(__file__).with_name("diamond.py")), host, str(gate), str(width)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        last = client.stdout.readline().strip()
        until(lambda: len(waiting(host)) > width and are_submitted(lab, host))
        client.send_signal(signal.SIGKILL)
    gate.touch()
    return clusterfn.attach(last, host)


def are_submitted(lab: Lab, host: str) -> bool:
    """Whether the scheduler knows all that wait: SLURM is asked for a job only after its folder is there."""
    names = lab.slurm.run("squeue", "--noheader", "--format=%j").stdout if host == "slurm" else ""
    return host != "slurm" or all(job.id in names for job in waiting(host))


def waiting(host: str) -> list[Any]:
    return [job for job in clusterfn.jobs(host) if job.inputs and job.state == "PENDING"]


@ON_BARE
def test_jobs_says_what_a_job_waits_for_and_cancelling_it_leaves_the_other_alone(hosts, host, gate):
    there = cluster(host=host)
    first = there(wait_for).submit(str(gate / "go"), 5)
    second = there(total).submit(first, 1)
    until(lambda: any(job.id == second.id for job in waiting(host)))

    until(lambda: "waiting for" in second.status)
    listed = {job.id: job for job in clusterfn.jobs(host)}[second.id]
    assert list(listed.inputs) == [first.id] and f"wait_for ({first.id[:4]})" in listed.message
    assert second.cancel()
    with pytest.raises(Cancelled):
        clusterfn.attach(second.id, host).result(150)
    (gate / "go").touch()
    assert first.result(150) == 5


def test_what_waits_for_a_value_reserves_nothing_and_delays_nobody(hosts, gate, gpubox_reset):
    """Jobs that need all GPUs wait for a value; one that needs one comes later, and runs at once."""
    there, all_gpus = cluster(host="tensor01"), cluster(host="tensor01", gpus=8)
    first = there(wait_for).submit(str(gate / "go"), 5)
    waits = [all_gpus(total).submit(first, number) for number in range(2)]
    until(lambda: len(waiting("tensor01")) >= 2 and first.state == "RUNNING")

    assert cluster(host="tensor01", gpus=1)(total)(1, 2) == 3
    assert {each.state for each in waits} == {"PENDING"} and first.state == "RUNNING"
    (gate / "go").touch()
    assert [each.result(150) for each in waits] == [5, 6]


@ON_BARE
def test_cancelling_a_job_fails_what_waits_for_its_value(hosts, host, gate):
    there = cluster(host=host)
    first = there(wait_for).submit(str(gate / "go"))
    second = there(note).submit(str(gate / "second"), first)
    until(lambda: first.state == "RUNNING")

    first.stop()

    with pytest.raises(DependencyFailed, match="wait_for .* has no value") as caught:
        second.result(150)
    assert isinstance(caught.value.__cause__, Cancelled)
    assert not (gate / "second").exists()


def test_a_value_of_another_host_is_sent_once_it_is_here(hosts, capfd):
    there, here = cluster(host="slurm"), cluster(host="tensor01")
    job = here(train).submit(4)
    gated = here(wait_for).submit("/nonexistent/never")

    assert job.result(150)["loss"] == 8
    assert there(loss_of).submit(job).result(150) == 8
    assert "is sent from this machine to slurm, as it ran on tensor01" in capfd.readouterr().err
    with pytest.raises(PayloadError, match=r"but runs on tensor01 and has not ended"):
        there(total).submit(gated)
    gated.stop()
    failed = here(fail).submit(1)
    assert isinstance(failed.exception(150), KeyError)
    with pytest.raises(DependencyFailed) as caught:
        there(total).submit(failed)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_value_that_was_removed_or_lacks_the_part_says_so(hosts):
    there = cluster(host="tensor01")
    job = there(train).submit(1)
    assert job.result(150)["loss"] == 2

    with pytest.raises(PayloadError, match=r"the value of train \([0-9a-f]{4}\) has no \['gain'\]: KeyError"):
        there(total)(job["gain"])
    (hosts.root / "jobs" / job.id).rename(hosts.root / "jobs" / f".gone-{job.id}")
    with pytest.raises(DependencyFailed, match="it is not on the host"):
        there(loss_of)(job)


def test_a_call_that_is_stopped_while_it_is_sent_leaves_its_inputs_alone(hosts, gate):
    """They are requests of other jobs, which the stop must not take back."""
    there, data = cluster(host="tensor01"), b"x" * (8 << 20)
    first = there(wait_for).submit(str(gate / "go"), data)
    second = there(len).submit(first)

    assert second.cancel() and second.cancelled()
    (gate / "go").touch()
    assert first.result(150) == data


def test_a_value_stays_as_long_as_another_job_needs_it(hosts, gate):
    there = cluster(host="tensor01")
    first, waits = there(train).submit(3), there(wait_for).submit(str(gate / "go"))
    second = there(look_at).submit(first, waits)
    assert first.result(150)["loss"] == 6

    assert main(["rm", first.id]) == 1
    (gate / "go").touch()
    assert second.result(150) == 6
    assert main(["rm", first.id]) == 0


def test_objects_of_classes_of_a_program_that_was_started_again_are_instances_of_its_classes(hosts, run_script):
    program = """
import clusterfn, json, sys
from clusterfn import cluster

class Model:
    loss = 3

there = cluster(host="tensor01")

def made():
    return Model()

def check(model):
    return isinstance(model, Model), model.loss

"""
    job_id = run_script(program + "job = there(made).submit(); job.result(150); print(json.dumps(job.id))")

    again = f"print(json.dumps(there(check)(clusterfn.attach({job_id!r}, 'tensor01'))))"
    assert run_script(program + again) == [True, 3]


def test_a_job_is_no_sequence(hosts):
    job = cluster(host="tensor01")(train).submit(1)

    for wrong in (list, tuple, iter, lambda given: 1 in given):
        with pytest.raises(TypeError):
            wrong(job)  # type: ignore[operator]
        with pytest.raises(TypeError):
            wrong(job["loss"])  # type: ignore[operator]
    with pytest.raises(TypeError, match="means one value, and map.. takes lists"):
        cluster(host="tensor01")(total).map(job)
    assert job.result(150)["loss"] == 2
