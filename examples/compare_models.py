"""Compare saved PyTorch models: two one after another, because they would share a GPU, three and more side by side.

    python examples/compare_models.py --host tensor01 --environment "python:~/envs/ml/bin/python" --gpus 1

Without a host it runs on this machine. The environment needs PyTorch; this machine does not. The host first trains the
models and saves them with torch.save. They come back as files, and each comparison sends those that the host lacks.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

from clusterfn import File, cluster

NAMES = ("best_model.zip", "previous_model.zip", "wide_model.zip", "deep_model.zip", "small_model.zip")


@cluster(cores=1, memory="2GB", name="training")
def train(steps: int) -> bytes:
    """A model that has learnt y = 2x - 1 for so many steps, as torch.save writes it."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    points = torch.linspace(-1, 1, 64).unsqueeze(1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(points), 2 * points - 1).backward()
        optimizer.step()
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    return saved.getvalue()


@cluster(cores=1, memory="2GB", name="models", allow_cpu=True)
def evaluate(path: Path) -> dict[str, float]:
    """The mean error of a saved model, on a GPU if the job has one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(1, 1).to(device)
    model.load_state_dict(torch.load(path, map_location=device))
    points = torch.linspace(-1, 1, 1000, device=device).unsqueeze(1)
    with torch.no_grad():
        return {"score": (model(points) - (2 * points - 1)).abs().mean().item()}


def main() -> None:
    """Train up to five models, then compare one, two, three and all five of them, or as many as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host")
    parser.add_argument("--environment")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 3, 5], help="how many models to compare")
    given = parser.parse_args()
    where = {"host": given.host, "environment": given.environment}

    with tempfile.TemporaryDirectory() as folder:
        steps = [8 * (len(NAMES) - number) for number in range(max(given.counts))]
        for name, saved in zip(NAMES, train.with_options(**where).map(steps).results()):
            Path(folder, name).write_bytes(saved)
        compare = evaluate.with_options(**where, gpus=given.gpus)
        for count in given.counts:
            models = [File(folder, name) for name in NAMES[:count]]
            scores = [found["score"] for found in compare.map(models, sequential_up_to=2).results()]
            best = min(range(count), key=scores.__getitem__)
            print(f"{count} compared, best: {NAMES[best]} {scores[best]:.4f}")


if __name__ == "__main__":
    main()
