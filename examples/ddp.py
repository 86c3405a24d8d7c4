"""Train one model in several processes, on several GPUs or nodes, and check that it is the same model everywhere.

    python examples/ddp.py --host tensor01 --environment "python:~/envs/ml/bin/python" --gpus 2
    python examples/ddp.py --host cluster --environment "conda:ml" --nodes 2 --processes 4

Each process has its own GPU, or a part of the CPU if there is none (gloo in place of nccl). The environment needs
PyTorch. Without a host everything runs on this machine.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from clusterfn import cluster

BATCH, FEATURES, STEPS = 96, 8, 20


def model_and_data() -> Any:
    """The same model and the same data in every process."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    inputs = torch.randn(BATCH, FEATURES, dtype=torch.float64)
    return model, inputs, inputs.sum(dim=1, keepdim=True).sin()


def fit(model: Any, inputs: Any, targets: Any) -> list[float]:
    """The loss before each step."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # with DDP the gradients are those of all ranks, averaged
        optimizer.step()
        losses.append(loss.item())
    return losses


def flat(model: Any) -> Any:
    """All parameters as one vector, in the processor's memory."""
    import torch

    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])


def rank_of_many(local: int, processes: int, node: int, nodes: int, place: tuple[str, int], answers: Any) -> None:
    """What each process does; runs in one that was spawned."""
    import torch
    import torch.distributed as distributed

    rank, world = node * processes + local, nodes * processes
    on_gpus = torch.cuda.device_count() >= processes
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    store = distributed.TCPStore(*place, is_master=False)
    distributed.init_process_group("nccl" if on_gpus else "gloo", store=store, rank=rank, world_size=world)

    model, inputs, targets = model_and_data()
    parallel = torch.nn.parallel.DistributedDataParallel(model.to(device), device_ids=[local] if on_gpus else None)
    own = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    losses = fit(parallel, inputs[own].to(device), targets[own].to(device))

    everywhere: list[Any] = [None] * world
    distributed.all_gather_object(everywhere, (flat(model).tolist(), losses))
    if local == 0:
        answers.put((device.type, everywhere))
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # after DDP gloo's threads outlive their group, and the interpreter's own end sometimes aborts on them


@cluster(memory="4GB")
def train(processes: int) -> dict[str, Any]:
    """Called once on each node: starts its processes, and compares what they have learned with one process alone."""
    import torch
    import torch.distributed as distributed
    import torch.multiprocessing as multiprocessing

    node, nodes = int(os.environ.get("NODE_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # set by nodes=
    if BATCH % (nodes * processes):
        raise ValueError(f"{BATCH} samples cannot be shared out evenly to {nodes * processes} processes")
    place = ("127.0.0.1", 0)  # a port that the kernel chooses
    if nodes > 1:
        place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = distributed.TCPStore(*place, is_master=node == 0, wait_for_workers=False)
    answers = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(rank_of_many, (processes, node, nodes, (place[0], store.port), answers), nprocs=processes)
    device, everywhere = answers.get()

    parameters = torch.tensor([learned for learned, _ in everywhere], dtype=torch.float64)
    losses = torch.tensor([told for _, told in everywhere]).mean(dim=0)
    alone, inputs, targets = model_and_data()
    fit(alone, inputs, targets)
    return {
        "processes": len(everywhere),
        "nodes": nodes,
        "device": device,
        "loss": (losses[0].item(), losses[-1].item()),
        "between ranks": (parameters - parameters[0]).abs().max().item(),
        "from one process": (parameters[0] - flat(alone)).abs().max().item(),
    }


def main() -> None:
    """Train where the command line says, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="a host of clusterfn.yml")
    parser.add_argument("--environment", help='such as "conda:ml" or "python:/path/to/python"')
    parser.add_argument("--gpus", type=int, default=0, help="GPUs on each node")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of a SLURM host")
    parser.add_argument("--processes", type=int, help="on each node; one for each GPU, or 2")
    asked = parser.parse_args()
    processes = asked.processes or asked.gpus or 2
    where = {name: getattr(asked, name) for name in ("host", "environment") if getattr(asked, name)}

    wanted = train.with_options(cores=processes, gpus=asked.gpus, nodes=asked.nodes, **where)
    found = wanted(processes)
    print(f"{found['processes']} processes on {found['nodes']} node(s), {found['device']}")
    print(f"loss {found['loss'][0]:.4f} -> {found['loss'][1]:.4f}")
    print(f"largest difference between the ranks: {found['between ranks']:.1e}")
    print(f"largest difference from one process with the whole batch: {found['from one process']:.1e}")


if __name__ == "__main__":
    main()
