"""A training that is interrupted twice ends with the same weights as one that is not: on a server and on SLURM."""

from __future__ import annotations

import sys

import pytest

from clusterfn import cluster
from tests.e2e.conftest import BOTH
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]


def train_numpy(steps, pauses):
    """Descends along random directions; waits to be interrupted after each step in `pauses`, once."""
    import time

    import numpy

    import clusterfn

    class Model:
        def __init__(self):
            numpy.random.seed(0)
            self.weights = numpy.random.standard_normal(8)

        def state_dict(self):
            return {"weights": self.weights}

        def load_state_dict(self, state):
            self.weights = state["weights"]

    model = Model()
    begin = clusterfn.load_training(model=model).get("step", 0)
    for step in range(begin, steps):
        model.weights = 0.9 * model.weights + numpy.random.standard_normal(8)
        clusterfn.save_training(model=model, step=step + 1)
        paused = clusterfn.checkpoint() / f"paused-{step}"
        if step in pauses and not paused.exists():
            paused.touch()
            time.sleep(600)
    return model.weights.tolist()


def train_torch(steps, pauses):
    """The same with PyTorch: Adam, dropout, and noise from its own random numbers."""
    import time

    import torch

    import clusterfn

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begin = clusterfn.load_training(model=model, optimizer=optimizer).get("step", 0)
    for step in range(begin, steps):
        x = torch.randn(16, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        clusterfn.save_training(model=model, optimizer=optimizer, step=step + 1)
        paused = clusterfn.checkpoint() / f"paused-{step}"
        if step in pauses and not paused.exists():
            paused.touch()
            time.sleep(600)
    return [value for each in model.parameters() for value in each.flatten().tolist()]


for travels_by_value in (train_numpy, train_torch):
    travels_by_value.__module__ = "__main__"


@pytest.fixture
def environment(lab):
    """An environment with PyTorch and numpy."""
    from tests.lab.layout import ENVS

    if sys.version_info[:2] != (3, 11) or not (ENVS / "torch" / "complete").exists():
        pytest.skip("the lab has no environment with PyTorch for this Python")
    return f"python:{ENVS / 'torch' / 'bin' / 'python'}"


def interrupted_by_its_time(function, lab):
    """Send it with so little time that it is warned while it pauses."""
    limited = function.with_options(time="10min", warn_before="9min 40s", requeue={"timeout": 9})
    return limited.submit(10, [3, 6])


def preempted(function, lab):
    """Send it, and have SLURM requeue it whenever it pauses, as a preemption does."""
    job = function.with_options(time="10min", warn_before="1min", requeue={"preempted": 2}).submit(10, [3, 6])
    for step in (3, 6):
        until(lambda step=step: f"paused-{step}" in [file.name for file in job.checkpoint.files])
        listed = lab.slurm.run("squeue", "--noheader", "--format=%i", f"--name={job.name}.{job.id}").stdout
        lab.slurm.run("scontrol", "requeue", listed.strip())
    return job


@BOTH
@pytest.mark.parametrize("train", [train_numpy, train_torch])
def test_a_training_that_is_interrupted_twice_ends_with_the_same_weights(hosts, lab, environment, host, train):
    function = cluster(host=host, environment=environment)(train)
    interrupt = preempted if host == "slurm" else interrupted_by_its_time

    job = interrupt(function, lab)

    assert job.result(400) == function(10, []), "to the last bit"
    assert len(job.notes) >= 2 and "requeued (2 of " in job.notes[1], job.notes
