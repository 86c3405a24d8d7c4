"""Train one small model with PyTorch Lightning, the Hugging Face Trainer, accelerate or torchrun's launcher.

    python examples/frameworks.py lightning --host tensor01 --environment "python:~/envs/ml/bin/python" --gpus 2
    python examples/frameworks.py trainer accelerate torchrun --host cluster --environment "conda:ml" --nodes 2

Each trains in one process for each GPU, on every node; without GPUs in two. The environment needs PyTorch, and what you
name of pytorch-lightning, transformers and accelerate. Without a host everything runs on this machine.
"""

from __future__ import annotations

import argparse
import atexit
import os
import socket
from collections.abc import Callable
from typing import Any

from clusterfn import cluster

SAMPLES, FEATURES = 32, 4


def dataset() -> Any:
    """Inputs, and their sums as targets."""
    import torch

    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def nodes() -> int:
    """How many nodes this job has."""
    return int(os.environ.get("SLURM_NNODES", 1))


@cluster(memory="4GB")
def lightning(processes: int) -> dict[str, Any]:
    """PyTorch Lightning starts the processes of one node itself; each runs this function from its first line."""
    return fit(processes) if nodes() == 1 else launch(fit, processes, processes)  # type: ignore[no-any-return]


def fit(processes: int) -> dict[str, Any]:
    """One rank of Lightning, or the first."""
    import pytorch_lightning
    import torch

    class Model(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            inputs, targets = batch
            return torch.nn.functional.mse_loss(self.layer(inputs), targets)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pytorch_lightning.Trainer(
        max_epochs=2, devices=processes, num_nodes=nodes(), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(dataset(), batch_size=4))
    return {"processes": trainer.world_size}


def launch(function: Callable[..., Any], processes: int, *args: Any) -> Any:
    """Call `function` in so many processes on each node, as torchrun would; what the first of this node returns."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT") or free_port()
    config = LaunchConfig(
        min_nodes=nodes(), max_nodes=nodes(), nproc_per_node=processes, run_id="training", monitor_interval=0.1,
        rdzv_backend="static", rdzv_endpoint=f"{address}:{port}",
        rdzv_configs={"rank": int(os.environ.get("NODE_RANK", 0))},
    )  # fmt: skip
    results = elastic_launch(config, rank_of)(function, *args)
    return results[min(results)]


def rank_of(function: Callable[..., Any], *args: Any) -> Any:
    """One rank."""
    result = function(*args)
    atexit.register(os._exit, 0)  # after DDP gloo's threads outlive their group, and an interpreter may abort on them
    return result


def free_port() -> int:
    """A port of this machine: a fixed one would meet that of the next job."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@cluster(memory="4GB")
def torchrun(processes: int) -> dict[str, Any]:
    """Torchrun's launcher as a function: the ranks find RANK, LOCAL_RANK and WORLD_SIZE in their environment."""
    return launch(rank_of_torchrun, processes)  # type: ignore[no-any-return]


def rank_of_torchrun() -> dict[str, Any]:
    """One rank of plain PyTorch."""
    import torch
    import torch.distributed as distributed

    local, on_gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    total = torch.ones(1, device=device)
    distributed.all_reduce(total)
    distributed.destroy_process_group()
    return {"processes": int(total.item())}


@cluster(memory="4GB")
def accelerate(processes: int) -> dict[str, Any]:
    """The launcher of `torchrun`, with accelerate in each rank. accelerate.notebook_launcher works as well."""
    return launch(rank_of_accelerate, processes)  # type: ignore[no-any-return]


def rank_of_accelerate() -> dict[str, Any]:
    """One rank with accelerate."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = torch.nn.Linear(FEATURES, 1)
    loader = torch.utils.data.DataLoader(dataset(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    found = {"processes": accelerator.num_processes}
    accelerator.end_training()
    return found


@cluster(memory="4GB")
def trainer(processes: int) -> dict[str, Any]:
    """The launcher of `torchrun`, with the Hugging Face Trainer in each rank."""
    return launch(rank_of_trainer, processes)  # type: ignore[no-any-return]


def rank_of_trainer() -> dict[str, Any]:
    """One rank with the Trainer, and a model that needs no download."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, 1)

        def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
            return {"loss": torch.nn.functional.mse_loss(self.layer(inputs), labels)}

    class Samples(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.data = dataset()

        def __len__(self) -> int:
            return len(self.data)

        def __getitem__(self, index: int) -> dict[str, Any]:
            inputs, labels = self.data[index]
            return {"inputs": inputs, "labels": labels}

    arguments = TrainingArguments("checkpoints", num_train_epochs=1, per_device_train_batch_size=4, report_to="none",
                                  save_strategy="no", use_cpu=not torch.cuda.is_available())  # fmt: skip
    Trainer(Model(), arguments, train_dataset=Samples()).train()
    return {"processes": arguments.world_size}


FRAMEWORKS = {"lightning": lightning, "trainer": trainer, "accelerate": accelerate, "torchrun": torchrun}


def main() -> None:
    """Train where the command line says, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frameworks", nargs="+", choices=FRAMEWORKS)
    parser.add_argument("--host", help="a host of clusterfn.yml")
    parser.add_argument("--environment", help="an environment with PyTorch and the framework")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each node")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, help="on each node; one for each GPU unless given, without GPUs two")
    asked = parser.parse_args()
    processes = asked.processes or asked.gpus or 2
    where = {name: getattr(asked, name) for name in ("host", "environment") if getattr(asked, name)}

    for name in asked.frameworks:
        found = FRAMEWORKS[name].with_options(cores=processes, gpus=asked.gpus, nodes=asked.nodes, **where)(processes)
        print(f"{name}: trained in {found['processes']} processes on {asked.nodes} node(s)")


if __name__ == "__main__":
    main()
