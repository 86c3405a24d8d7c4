"""What is told of a lock's PyTorch: for which CUDA it was built, wheel or conda package."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.environment.cuda import table
from clusterfn.environment.lock import Lock, Package
from clusterfn.environment.making import Made, torch_of
from clusterfn.spec import Host


def locked(name: str, version: str, build: str = "", manager: str = "conda") -> Lock:
    package = Package(name, version, build, manager, "", "", "0" * 64, "", "linux-64")
    return Lock(Path("e.conda-lock.yml"), (package,), ("linux-64",))


@pytest.mark.parametrize(
    "lock, cuda",
    [
        (locked("pytorch", "2.7.1", "cuda128_generic_py311_h0123456_300"), "12.8"),
        (locked("pytorch", "2.7.1", "cuda126_mkl_py311_h0123456_300"), "12.6"),
        (locked("pytorch", "2.1.0", "py3.11_cuda12.1_cudnn8.9.2_0"), "12.1"),
        (locked("pytorch", "1.13.1", "cuda112py310he33e0d6_200"), "11.2"),
        (locked("pytorch", "2.7.1", "cpu_generic_py311_h0123456_0"), ""),
        (locked("pytorch", "2.7.1", "py311_0"), None),
        (locked("torch", "2.7.1+cu118", manager="pip"), "11.8"),
        (locked("torch", "2.8.0+cpu", manager="pip"), ""),
        (locked("torch", "2.8.0", manager="pip"), "12.8"),
    ],
)
def test_the_cuda_of_a_build(lock: Lock, cuda: str | None):
    torch = torch_of(lock.packages, table())

    assert torch and torch.cuda == cuda


def test_a_build_of_which_nothing_is_known_is_asked_on_the_card():
    lock, host = locked("pytorch", "2.7.1", "py311_0"), Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")

    assert Made("e", lock, "linux-64", "/root", host, on_cards=True).building.cuda == "unknown"
    assert Made("e", lock, "linux-64", "/root", host).building.cuda == ""
