"""Frameworks that start processes of their own: each trains in as many as it was asked for, on one node and on two.

The programs are examples/frameworks.py and what docs/how-to/frameworks.md says of launchers that need a script.
"""

from __future__ import annotations

import sys

import pytest

from clusterfn import cluster
from tests.e2e.test_examples import run

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lab's PyTorch is for Python 3.11"),
]


@pytest.fixture
def torch(lab):
    """The environment with PyTorch and the frameworks, as `--environment` names it."""
    return f"python:{lab.torch_python}"


@pytest.mark.parametrize(
    ("host", "nodes", "frameworks"),
    [
        ("tensor01", 1, ["lightning"]),  # as in test_processes.py, programs start again
        ("tensor01", 1, ["torchrun", "accelerate", "trainer"]),
        ("slurm", 1, ["lightning"]),
        ("slurm", 2, ["torchrun"]),
        ("slurm", 2, ["lightning", "accelerate", "trainer"]),
    ],
)
def test_a_framework_trains_in_all_processes(hosts, torch, host, nodes, frameworks):
    out = run("frameworks.py", *frameworks, "--host", host, "--environment", torch, "--nodes", str(nodes))

    told = [f"{name}: trained in {2 * nodes} processes on {nodes} node(s)" for name in frameworks]
    assert [line for line in out.splitlines() if ": trained in " in line] == told


def fits(strategy, devices, nodes):
    import os

    import pytorch_lightning
    import torch

    class Model(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            if os.environ.get("LOCAL_RANK") == "1" and strategy == "ddp":
                raise ValueError("of rank 1")
            return self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", devices=devices, num_nodes=nodes, strategy=strategy, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.ones(8, 4))
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=2))
    return trainer.world_size


def accelerates(how):
    """What notebook_launcher and the program torchrun give: each rank writes a file."""
    import os
    import subprocess
    import sys
    from pathlib import Path

    def rank():
        import torch
        from accelerate import Accelerator

        world = Accelerator(cpu=not torch.cuda.is_available()).num_processes
        Path("rank-" + os.environ["RANK"]).write_text(str(world))

    if "RANK" in os.environ:
        return rank()
    if how == "notebook_launcher":
        from accelerate import notebook_launcher

        # Above those that the kernel gives to others meanwhile.
        notebook_launcher(rank, num_processes=2, use_port=str(61000 + os.getpid() % 4000))
    else:
        torchrun = Path(sys.executable).parent / "torchrun"
        subprocess.run([str(torchrun), "--standalone", "--nproc-per-node=2", *sys.argv], check=True)
    return sorted((path.name, path.read_text()) for path in Path().glob("rank-*"))


def accelerated():
    from accelerate import Accelerator

    return Accelerator(cpu=True).num_processes


for function in (fits, accelerates, accelerated):
    function.__module__ = "__main__"  # so that it travels by value


@pytest.mark.parametrize("how", ["torchrun", "notebook_launcher"])
def test_a_launcher_runs_the_call_in_all_its_ranks(hosts, torch, how):
    found = cluster(host="tensor01", environment=torch, cores=2, memory="4GB")(accelerates)(how)

    assert found == [("rank-0", "2"), ("rank-1", "2")]


@pytest.mark.parametrize("host", ["tensor01", "slurm"])
def test_lightning_forks_its_processes(hosts, torch, host):
    assert cluster(host=host, environment=torch, cores=2, memory="4GB")(fits)("ddp_fork", 2, 1) == 2


def test_lightning_meets_on_two_nodes_without_starting_anything(hosts, torch):
    assert cluster(host="slurm", nodes=2, environment=torch, memory="3GB")(fits)("auto", 1, 2) == 2


def test_accelerate_meets_on_two_nodes_without_a_launcher(hosts, torch):
    assert cluster(host="slurm", nodes=2, environment=torch, memory="3GB")(accelerated)() == 2


def test_lightning_with_two_processes_on_each_of_two_nodes_says_what_does_not_match(hosts, torch):
    with pytest.raises(ValueError, match="number of tasks per node"):
        cluster(host="slurm", nodes=2, environment=torch, memory="3GB")(fits)("auto", 2, 2)


def test_lightning_finds_the_tasks_that_slurm_has_started(hosts, torch):
    options = {"nodes": 2, "tasks_per_node": 2, "cores": 1, "memory": "3GB", "time": "10min", "environment": torch}

    assert cluster(host="slurm", **options)(fits)("auto", 2, 2) == 4
