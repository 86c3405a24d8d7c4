"""The environment with PyTorch, FAISS and training frameworks that jobs of the lab may use: envs/torch, made on demand.

pip finds the build it is configured for; without a CPU build nearby, plain torch is several gigabytes.
"""

from __future__ import annotations

import shutil

from .layout import ENVS
from .processes import LabError, State, run

REQUIREMENTS = (
    "torch==2.13.0", "numpy", "faiss-cpu==1.15.1", "pandas",
    "pytorch-lightning==2.6.6", "accelerate==1.15.0", "transformers==5.23.0",
)  # fmt: skip
TORCH = ENVS / "torch"
# Python 3.11 is what the lab's jobs are written for; 3.10 and newer have wheels too.
WANTED = ("3.11", "3.12", "3.10", "3.13")


def is_ready() -> bool:
    """The environment was finished once with all of these (the mark is written last)."""
    mark = TORCH / "complete"
    return mark.exists() and mark.read_text().split() == list(REQUIREMENTS)


def build(state: State) -> None:
    """Make the environment unless it is there."""
    if is_ready():
        return
    if not state.complete:
        raise LabError("the lab is not up: python -m tests.lab up")
    minor = next((minor for minor in WANTED if minor in state.pythons), None)
    if minor is None:
        raise LabError(f"PyTorch needs one of Python {', '.join(WANTED)}")
    print(f"The torch environment: {' '.join(REQUIREMENTS)} under {TORCH} (two minutes)", flush=True)
    if not (TORCH / "complete").exists():
        shutil.rmtree(TORCH, ignore_errors=True)
        run([state.pythons[minor]["path"], "-m", "venv", str(TORCH)])
    run([str(TORCH / "bin" / "python"), "-m", "pip", "install", "-q", *REQUIREMENTS])
    run(["chmod", "-R", "a+rX", str(ENVS)])
    (TORCH / "complete").write_text("\n".join(REQUIREMENTS) + "\n")
