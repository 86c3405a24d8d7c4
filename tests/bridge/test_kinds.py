"""Cards by their type and their size, on a machine that has several."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.cards import machine
from tests.bridge.host import Bench

SHOW = """def f():
    import os
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]
"""
MIXED = (("NVIDIA RTX A1000", 8188), ("NVIDIA RTX A6000", 49140), ("NVIDIA RTX A1000", 8188), ("NVIDIA A100", 40960))


@pytest.fixture
def uuids(tmp_path: Path) -> list[str]:
    return [card["uuid"] for card in machine(tmp_path / "bin", *MIXED).read()["cards"]]


def run(bench: Bench, tmp_path: Path, scheduler: str = "bare", **resources: Any) -> tuple[Any, dict[str, Any]]:
    job = bench.job(SHOW, resources={"gpus": 1, **resources}, scheduler=scheduler)
    outcome = job.run(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return job.value() if outcome["kind"] == "returned" else None, outcome


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"gpu_type": "RTX A6000", "scheduler": "local"}, [1]),
        ({"gpu_type": "a6000"}, [1]),
        ({"gpu_type": "a1000", "gpus": 2}, [0, 2]),
        ({"gpu_memory_bytes": 20 << 30}, [1]),
        ({"gpu_memory_bytes": 20 << 30, "gpus": 2}, [1, 3]),
        ({"gpu_type": "a100", "gpu_memory_bytes": 20 << 30}, [3]),
    ],
)
def test_a_job_gets_gpus_of_its_type_and_size_alone(bench, tmp_path, uuids, asked, given):
    value, _ = run(bench, tmp_path, **asked)

    assert value == [",".join(map(str, given)), "PCI_BUS_ID"]


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        (
            {"gpu_type": "a600"},
            "the job asks for 1 GPU of type a600, and the host has "
            "2 x NVIDIA RTX A1000 (8 GB), 1 x NVIDIA RTX A6000 (48 GB), 1 x NVIDIA A100 (40 GB)",
            'did you mean gpu_type="a6000"?',
        ),
        (
            {"gpu_memory_bytes": 40 << 30, "gpus": 3},
            "the job asks for 3 GPUs with 40 GB, and the host has",
            "ask for fewer or other GPUs, or choose another host",
        ),
    ],
)
def test_gpus_that_the_machine_does_not_have_are_refused_by_name(bench, tmp_path, uuids, asked, message, hint):
    _, outcome = run(bench, tmp_path, **asked)

    assert (outcome["kind"], outcome["stage"]) == ("unsatisfiable", "lease")
    assert message in outcome["message"]
    assert outcome["hint"] == hint
