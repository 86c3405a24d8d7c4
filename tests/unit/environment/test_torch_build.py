"""What is told of a lock's PyTorch: for which CUDA it was built, wheel or conda package."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.environment import torch_build
from clusterfn.environment.cuda import GpuCapabilities, choose_build, load_table
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.packages import from_packages
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.environment.torch_build import find_torch
from clusterfn.errors import EnvironmentBuildError

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")


def locked(name: str, version: str, build: str = "", manager: str = "conda") -> EnvironmentLock:
    package = LockedPackage(name, version, build, manager, "", "", "0" * 64, "linux-64")
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
    ],
)
def test_the_cuda_of_a_build(lock: EnvironmentLock, cuda: str | None):
    torch = find_torch(lock.packages, load_table())

    assert torch and torch.cuda == cuda


def test_a_build_of_which_nothing_is_known_is_asked_on_the_card():
    lock, host = locked("pytorch", "2.7.1", "py311_0"), HOST

    assert LockedEnvironment("e", lock, "linux-64", "/root", host, on_gpus=True).building.cuda == "unknown"
    assert LockedEnvironment("e", lock, "linux-64", "/root", host).building.cuda == ""


A6000 = GpuCapabilities("595.45.04", ("8.6",), "nvidia-smi says on tensor01")


def pinned(*packages: str, cards: GpuCapabilities = A6000) -> tuple[list[str], tuple[str, ...], str]:
    """What is solved where cards are asked for: the wheels, the indexes, and CUDA."""
    spec = from_packages(packages)
    wheel = spec.wheel("torch")
    choice = choose_build(cards, torch_build.request_torch(spec, wheel, HOST), load_table(), "tensor01")
    solved = torch_build.pin_torch(spec, wheel, choice, load_table())
    return [each.text for each in solved.pip], solved.indexes, choice.cuda


def test_a_range_of_versions_is_narrowed_and_never_replaced():
    assert pinned("torch>=2.4,<2.8") == (["torch>=2.4,<2.8,==2.7.*"], (), "12.6")
    assert pinned("pip:torch[opt]~=2.7.0; python_version>'3'") == (
        ["torch[opt]~=2.7.0,==2.7.*; python_version>'3'"], (), "12.6",
    )  # fmt: skip


def test_an_exact_version_gets_the_build_that_runs():
    older = GpuCapabilities("520.61.05", ("8.6",))

    assert pinned("torch==2.7.1", "torchvision", cards=older) == (
        ["torch==2.7.1+cu118", "torchvision==0.22.*"], ("https://download.pytorch.org/whl/cu118",), "11.8",
    )  # fmt: skip


def test_the_build_in_the_users_version_decides_and_nothing_is_added_to_it():
    assert pinned("torch==2.7.1+cu118") == (["torch==2.7.1+cu118"], (), "11.8")


@pytest.mark.parametrize(
    ("index", "torch"),
    [
        ("--index-url https://download.pytorch.org/whl/cu118", "torch"),
        ("--extra-index-url https://m.example/whl/cu118/", "torch==2.7.*"),
    ],
)
def test_the_index_that_the_user_names_decides(index: str, torch: str):
    wheels, indexes, cuda = pinned("torch", index)

    assert (wheels, indexes, cuda) == ([torch], (index.split()[1],), "11.8")


def test_a_build_without_cuda_is_refused_before_anything_is_solved():
    with pytest.raises(EnvironmentBuildError, match=r"torch==2.7.1\+cpu is a build of PyTorch without CUDA"):
        pinned("torch==2.7.1+cpu")
    with pytest.raises(EnvironmentBuildError, match=r"whl/cpu is a build of PyTorch without CUDA"):
        pinned("torch", "--index-url", "https://download.pytorch.org/whl/cpu")


def test_an_environment_with_torch_is_only_done_once_it_imports_torch():
    assert LockedEnvironment("e", locked("torch", "2.7.1", manager="pip"), "linux-64", "/root", HOST).has_torch
    assert LockedEnvironment("e", locked("pytorch", "2.7.1", "cpu_0"), "linux-64", "/root", HOST).has_torch
    assert not LockedEnvironment("e", locked("numpy", "2.1.3"), "linux-64", "/root", HOST).has_torch
