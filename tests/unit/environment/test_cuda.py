"""Which build of PyTorch an environment gets: against rows typed from the sources, and what is told of a lock's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterfn import EnvironmentBuildError
from clusterfn.config.spec import Host
from clusterfn.environment import torch_build
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.environment.torch_build import GpuCapabilities, choose_build, cuda_warnings, find_torch
from tests.builder import toys
from tests.unit.environment.shelf import Shelf, capabilities, choose_builds
from tests.unit.environment.test_repositories import TABLE as GIFT
from tests.unit.environment.test_repositories import git

ROWS = yaml.safe_load(Path(__file__).with_name("cuda_rows.yml").read_text())
REWRITE = bool(os.environ.get("CLUSTERFN_UPDATE_GOLDEN"))
CHOICES = Path(__file__).with_name("cuda_choices.txt")
DRIVERS = ("450.80.02", "470.57.02", "520.61.05", "525.60.13", "550.54.14", "570.26", "575.57.08", "580.65.06")
CARDS = ("3.7", "5.2", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['driver']}-{row['card']}-{row['torch']}")
def test_the_choice_is_what_the_sources_say(row: dict[str, Any]) -> None:
    cards = GpuCapabilities(row["driver"], (row["card"],))
    if row["cuda"] is not None:
        assert choose_build(cards, row["torch"]).cuda == row["cuda"]
        return
    with pytest.raises(EnvironmentBuildError) as caught:
        choose_build(cards, row["torch"], host="tensor01")
    told = str(caught.value)
    assert all(each in told for each in (row["driver"], row["card"], row["torch"][:3], row["least"], "tensor01")), told
    assert caught.value.hint


def test_there_are_rows_enough() -> None:
    assert len(ROWS) >= 25


def _written_out() -> str:
    lines = [
        f"PyTorch and CUDA without a wish, by the table of {torch_build.load_table().date}",
        "driver".ljust(12) + " card",
    ]
    for driver in DRIVERS:
        for card in CARDS:
            try:
                gpus = GpuCapabilities(driver, (card,))
                choice = choose_build(gpus)
                warns = " (warns)" if cuda_warnings(choice.cuda, gpus) else ""
                told = f"torch {choice.torch} with CUDA {choice.cuda}{warns}"
            except EnvironmentBuildError as error:
                told = f"refused; {error.hint}"
            lines.append(f"{driver:12} {card:5} {told}")
    return "\n".join(lines) + "\n"


def test_the_table_of_choices_is_the_one_that_was_looked_at() -> None:
    if REWRITE:
        CHOICES.write_text(_written_out())
    assert _written_out() == CHOICES.read_text()


def test_what_is_newer_than_the_table_is_not_refused() -> None:
    newer_card = GpuCapabilities("580.65.06", ("14.0",))
    assert "newer than the table" in cuda_warnings(choose_build(newer_card).cuda, newer_card)[0]
    assert torch_build.runs_on("2.99.0", "13.9", newer_card)


def test_a_refusal_says_what_would_run() -> None:
    with pytest.raises(EnvironmentBuildError, match=r"torch==2\.7\.\*"):
        choose_build(GpuCapabilities("470.57.02", ("8.6",)), "2.8.0")
    with pytest.raises(EnvironmentBuildError, match=r"driver 525\.60\.13 or newer"):
        choose_build(GpuCapabilities("450.80.02", ("12.0",)))


def test_mixed_gpus_get_what_all_of_them_run() -> None:
    assert choose_build(GpuCapabilities("580.65.06", ("6.1", "8.6"))).cuda == "12.6"


def test_an_older_driver_of_the_same_major_version_is_warned_of() -> None:
    gpus = GpuCapabilities("525.60.13", ("8.6",))
    (warning,) = cuda_warnings(choose_build(gpus, "2.9.1").cuda, gpus)
    assert "560.28.03" in warning and "PTX" in warning


def test_the_index_is_named_only_where_the_package_index_has_another_build() -> None:
    assert choose_build(GpuCapabilities("575.57.08", ("8.6",)), "2.8.0").backend == ""
    assert choose_build(GpuCapabilities("575.57.08", ("6.1",)), "2.8.0").backend == "cu126"


@pytest.mark.parametrize(
    ("versions", "torch"), [(">=2.4,<2.8", "2.7"), ("~=2.6.0", "2.6"), ("!=2.14.*", "2.13"), ("", "2.14")]
)
def test_of_a_range_the_newest_that_runs_is_chosen(versions: str, torch: str) -> None:
    assert choose_build(GpuCapabilities("595.45.04", ("8.6",)), versions).torch == torch


def test_a_range_of_which_the_driver_runs_only_old_ones_gets_an_old_one() -> None:
    assert choose_build(GpuCapabilities("470.57.02", ("8.6",)), ">=2.4").torch == "2.7"
    with pytest.raises(EnvironmentBuildError, match=r"no build of PyTorch >=2\.8,<2\.11 runs on tensor01"):
        choose_build(GpuCapabilities("470.57.02", ("8.6",)), ">=2.8,<2.11", host="tensor01")


HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")


def lock_of(name: str, version: str, build: str = "", manager: str = "conda") -> EnvironmentLock:
    file = "torch.tar.gz" if build == "source" else f"{name}-{version}-{build}.conda" if build else f"{name}.whl"
    package = LockedPackage(name, version, manager, f"https://c.example/{file}", "0" * 64, "linux-64")
    return EnvironmentLock(Path("e.conda-lock.yml"), (package,), ("linux-64",))


@pytest.mark.parametrize(
    "lock, cuda",
    [
        (lock_of("pytorch", "2.7.1", "cuda128_generic_py311_h0123456_300"), "12.8"),
        (lock_of("pytorch", "2.7.1", "cuda126_mkl_py311_h0123456_300"), "12.6"),
        (lock_of("pytorch", "2.1.0", "py3.11_cuda12.1_cudnn8.9.2_0"), "12.1"),
        (lock_of("pytorch", "1.13.1", "cuda112py310he33e0d6_200"), "11.2"),
        (lock_of("pytorch", "2.7.1", "cpu_generic_py311_h0123456_0"), ""),
        (lock_of("pytorch", "2.7.1", "py311_0"), None),
        (lock_of("torch", "2.7.1+cu118", manager="pip"), "11.8"),
        (lock_of("torch", "2.8.0+cpu", manager="pip"), ""),
        (lock_of("torch", "2.8.0", manager="pip"), "12.8"),
        (lock_of("torch", "2.8.0", "source", manager="pip"), None),
    ],
)
def test_the_cuda_of_a_build(lock: EnvironmentLock, cuda: str | None):
    torch = find_torch(lock.packages)

    assert torch and torch.cuda == cuda


def test_a_build_of_which_nothing_is_known_is_asked_on_the_gpu():
    lock, host = lock_of("pytorch", "2.7.1", "py311_0"), HOST

    assert LockedEnvironment("e", lock, "linux-64", "/root", host, on_gpus=True).building.cuda == "unknown"
    assert LockedEnvironment("e", lock, "linux-64", "/root", host).building.cuda == ""


def test_an_environment_with_torch_is_only_done_once_it_imports_torch():
    assert LockedEnvironment("e", lock_of("torch", "2.7.1", manager="pip"), "linux-64", "/root", HOST).has_torch
    assert LockedEnvironment("e", lock_of("pytorch", "2.7.1", "cpu_0"), "linux-64", "/root", HOST).has_torch
    assert not LockedEnvironment("e", lock_of("numpy", "2.1.3"), "linux-64", "/root", HOST).has_torch


OLD = capabilities("575.57.08")
NEW = capabilities("595.45.04")


def only_new_ones_for_cuda_13(builds: Iterable[Any]) -> Iterable[Any]:
    """PyTorch 2.9 and newer has a build for CUDA 13 alone, so that no index of PyTorch is asked."""
    for row in builds:
        if row.cuda > "12.8":
            yield row
        elif row.first < (2, 9):
            yield replace(row, last=min(row.last or (2, 8), (2, 8)))


@pytest.fixture
def shelf(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.chdir(shelf.project)
    for version in ("2.8.0", "2.15.0"):
        shelf.wheel("torch", version)
    shelf.wheel("accelerate", requires="torch>=2")
    shelf.wheel("newest", requires="torch>=2.15")
    choose_builds(monkeypatch, only_new_ones_for_cuda_13)
    return shelf


def read(shelf: Shelf, place: str, wanted: str) -> Any:
    """A file that wants PyTorch itself, or through a package, a clone of a repository, or a repository."""
    if wanted == "repository":
        folder = shelf.folder.parent / "gift"
        folder.mkdir()
        files = {**toys.with_backend("gift"), "pyproject.toml": f'{GIFT}dependencies = ["torch>=2"]\n'}
        for name, text in files.items():
            (folder / name).write_text(text)
        git(folder, "init", "--quiet")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", "first")
        shelf.wheel("pip")
        wanted = f"gift @ git+{folder.as_uri()}"
    if wanted == "clone":
        shelf.write('[project]\nname = "clone"\nversion = "1"\ndependencies = ["torch>=2"]\n', "clone/pyproject.toml")
        sources = '[tool.uv.sources]\nclone = {path = "clone", editable = true}\n'
        if place == "pyproject.toml":
            shelf.pyproject('"clone"', sources)
            return shelf.read(place)
        if place == "packages=":
            return shelf.packages(["python=3.11", "-e ./clone"])
        wanted = "-e ./clone"
    if place == "packages=":
        return shelf.packages(["python=3.11", f"pip:{wanted}"])
    if place == "requirements.txt":
        shelf.write(f"{wanted}\n", place)
    elif place == "pyproject.toml":
        shelf.pyproject(f'"{wanted}"')
    else:
        shelf.write(f"dependencies:\n- python=3.11\n- pip:\n  - {wanted}\n", place)
    return shelf.read(place)


def locked(shelf: Shelf, spec: Any, gpus: Any, has: Any = OLD) -> str:
    """The version of PyTorch in the lock for a call."""
    made = shelf.environment(spec, gpus, has)
    return next(each.version for each in made.lock.packages if each.name == "torch")


@pytest.mark.parametrize("wanted", ["accelerate", "torch", "clone"])
@pytest.mark.parametrize("place", ["requirements.txt", "pyproject.toml", "environment.yml", "packages="])
def test_a_file_has_one_pytorch_that_runs_on_the_gpus_whichever_call_comes_first(shelf: Shelf, place: str, wanted: str):
    spec = read(shelf, place, wanted)

    assert locked(shelf, spec, None) == "2.8.0"
    assert locked(shelf, spec, OLD) == "2.8.0"
    assert locked(shelf, spec, None) == "2.8.0"
    assert sum("solving" in line for line in shelf.said) == 1


def test_a_git_repository_that_wants_pytorch_gets_a_build_that_runs(shelf: Shelf):
    assert locked(shelf, read(shelf, "requirements.txt", "repository"), OLD) == "2.8.0"


def test_a_range_is_narrowed_and_never_left(shelf: Shelf):
    shelf.wheel("torch", "2.7.1")

    assert locked(shelf, read(shelf, "requirements.txt", "torch[opt] >=2.4,!=2.8.*,<3"), OLD) == "2.7.1"
    assert any("PyTorch 2.15.0 does not run on the GPUs of tensor01: driver 575" in line for line in shelf.said)
    assert any(line.startswith("CUDA 12.6 for PyTorch 2.7.1: driver 575") for line in shelf.said)
    with pytest.raises(EnvironmentBuildError, match=r"no build of PyTorch >=2\.9,<=2\.15\.0 runs on tensor01"):
        locked(shelf, read(shelf, "requirements.txt", "torch>=2.9"), OLD)


def test_of_the_users_index_the_newest_build_that_runs_is_taken(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    choose_builds(monkeypatch, list)
    for version in ("2.10.0", "2.11.0"):  # the latter has no code for this GPU
        shelf.wheel("torch", f"{version}+cu128")
    index = shelf.folder.parent / "cu128"
    index.mkdir()
    spec = read(shelf, "requirements.txt", f"--index-url {index.as_uri()}\ntorch<2.12")

    assert locked(shelf, spec, replace(NEW, capabilities=("7.0",))) == "2.10.0+cu128"


@pytest.mark.parametrize("build", ["cu132", "cpu"])
def test_the_very_build_that_the_user_names_is_locked_or_refused(shelf: Shelf, build: str):
    shelf.wheel("torch", f"2.15.0+{build}")
    spec = read(shelf, "requirements.txt", f"torch==2.15.0+{build}")

    with pytest.raises(EnvironmentBuildError, match=rf"has PyTorch 2\.15\.0\+{build} .* which does not run"):
        locked(shelf, spec, OLD)
    assert not list(shelf.project.glob("*.conda-lock.yml"))
    assert locked(shelf, spec, None) == f"2.15.0+{build}"


def test_a_lock_from_other_gpus_is_made_again(shelf: Shelf):
    spec = read(shelf, "requirements.txt", "accelerate")
    assert locked(shelf, spec, NEW) == "2.15.0"

    assert locked(shelf, spec, OLD) == "2.8.0"


@pytest.mark.parametrize("place", ["requirements.txt", "environment.yml"])
def test_no_lock_is_left_whose_pytorch_does_not_run(shelf: Shelf, place: str):
    spec = read(shelf, place, "newest")

    with pytest.raises(Exception, match="no solution|does not run"):
        locked(shelf, spec, OLD)
    assert not list(shelf.project.glob("*.conda-lock.yml"))


def test_a_lock_of_uv_whose_pytorch_does_not_run_leaves_none_either(shelf: Shelf):
    shelf.pyproject('"accelerate"', shelf.settings)
    shelf.uv_lock()

    with pytest.raises(EnvironmentBuildError, match=r"has PyTorch 2\.15\.0 .* which does not run"):
        locked(shelf, shelf.read("uv.lock"), OLD)
    assert not list(shelf.project.glob("*.conda-lock.yml"))
    assert locked(shelf, shelf.read("uv.lock"), None) == "2.15.0"  # it wants no GPU


@pytest.mark.parametrize("wanted", ["accelerate", "torch"])
def test_where_there_are_no_gpus_or_no_build_for_them_a_call_without_gets_the_newest(shelf: Shelf, wanted: str):
    spec = read(shelf, "requirements.txt", wanted)
    none_runs = capabilities("300.1")

    assert locked(shelf, spec, None, has=None) == "2.15.0"
    (shelf.project / "requirements.conda-lock.yml").unlink()
    assert locked(shelf, spec, None, has=none_runs) == "2.15.0"


def test_a_build_for_gpus_that_cannot_be_had_is_reported_and_a_call_without_gets_the_newest(shelf: Shelf):
    spec = read(shelf, "requirements.txt", "newest")

    assert locked(shelf, spec, None) == "2.15.0"
    assert any("PyTorch for GPUs cannot be had" in line for line in shelf.said)
