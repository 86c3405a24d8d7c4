"""What is told of a lock's PyTorch: for which CUDA it was built, wheel or conda package."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.environment.torch_build import find_torch

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")


def locked(name: str, version: str, build: str = "", manager: str = "conda") -> EnvironmentLock:
    file = "torch.tar.gz" if build == "source" else f"{name}-{version}-{build}.conda" if build else f"{name}.whl"
    package = LockedPackage(name, version, manager, f"https://c.example/{file}", "0" * 64, "linux-64")
    return EnvironmentLock(Path("e.conda-lock.yml"), (package,), ("linux-64",))


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
        (locked("torch", "2.8.0", "source", manager="pip"), None),
    ],
)
def test_the_cuda_of_a_build(lock: EnvironmentLock, cuda: str | None):
    torch = find_torch(lock.packages)

    assert torch and torch.cuda == cuda


def test_a_build_of_which_nothing_is_known_is_asked_on_the_gpu():
    lock, host = locked("pytorch", "2.7.1", "py311_0"), HOST

    assert LockedEnvironment("e", lock, "linux-64", "/root", host, on_gpus=True).building.cuda == "unknown"
    assert LockedEnvironment("e", lock, "linux-64", "/root", host).building.cuda == ""


def test_an_environment_with_torch_is_only_done_once_it_imports_torch():
    assert LockedEnvironment("e", locked("torch", "2.7.1", manager="pip"), "linux-64", "/root", HOST).has_torch
    assert LockedEnvironment("e", locked("pytorch", "2.7.1", "cpu_0"), "linux-64", "/root", HOST).has_torch
    assert not LockedEnvironment("e", locked("numpy", "2.1.3"), "linux-64", "/root", HOST).has_torch
