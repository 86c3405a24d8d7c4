"""The example that compares models, in the lines of those who wrote the first such program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "compare_models.py"
TWO = (("1", "best_model"), ("2", "previous_model"))


def compared(*argv):
    """What it printed, and what was said meanwhile of the comparisons."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *argv],
        capture_output=True, text=True, timeout=280.0, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.partition("models on ")[2]


def check_compared(printed, said, why=", as sequential_up_to=2 asks", counts=(1, 2, 3, 5)):
    score = printed[0].rpartition(" ")[2]
    assert 0 < float(score) < 0.5
    assert printed == [f"{count} compared, best: best_model.zip {score}" for count in counts]
    for count in counts:
        mode = f"SEQUENTIAL processing{why}" if count == 2 else "PARALLEL processing"
        assert re.search(rf"Using {mode}.* \(models: {count}\)", said), said
        assert len(re.findall(rf"\[\d/{count}\] \S*\w+\.zip ✓ 0\.\d+, \d+\.\ds\n", said)) == count, said
        assert re.search(rf"{count}/{count} returned, completed in \d+\.\d seconds", said)
    # The labels have the folder, too, or what of its path they have room for.
    assert re.findall(r"\[(\d)/2\] \S*?(\w+)\.zip ✓", said) == list(TWO)


@pytest.mark.lab
@pytest.mark.long
def test_models_are_compared_on_a_box_of_gpus(hosts, torch, gpubox_reset):
    printed, said = compared("--host", "tensor01", "--environment", torch, "--gpus", "1")
    check_compared(printed, said, " to avoid GPU deadlock")
