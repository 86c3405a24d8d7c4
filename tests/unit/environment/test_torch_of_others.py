"""PyTorch, wanted itself or through other packages: its build runs on the GPUs, and one file has one PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from clusterfn import EnvironmentBuildError
from tests.builder import toys
from tests.unit.environment.shelf import Shelf, capabilities, choose_builds
from tests.unit.environment.test_repositories import TABLE as GIFT
from tests.unit.environment.test_repositories import git

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
