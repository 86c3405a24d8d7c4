"""A training that may be interrupted at any step, and ends with the same weights as one that was not.

python examples/checkpoints.py [HOST]

Needs PyTorch in the environment of the host.
"""

from __future__ import annotations

import sys

import clusterfn
from clusterfn import cluster


@cluster(cores=1, memory="2GB", time="10min", warn_before="1min", requeue=["timeout", "preempted", "node"])
def train(steps: int) -> list[float]:
    """Fit a line to noisy points; the weights."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    # Loads all three and the state of the random numbers, if an earlier attempt has saved them.
    first = clusterfn.load_training(model=model, optimizer=optimizer).get("step", 0)
    for step in range(first, steps):
        x = torch.rand(64, 1)
        loss = (model(x) - 3 * x - 1 + 0.1 * torch.randn(64, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clusterfn.save_training(model=model, optimizer=optimizer, step=step + 1)
    return [float(value) for value in (model.weight, model.bias)]


def main() -> None:
    """Train, list the checkpoint of the job, and print the weights."""
    host = sys.argv[1] if len(sys.argv) > 1 else None
    job = (train.on(host) if host else train).submit(200)
    weight, bias = job.result()
    print("saved:", *(file.name for file in job.checkpoint.files))
    print(f"weight {weight:.2f}, bias {bias:.2f}")


if __name__ == "__main__":
    main()
