"""PyTorch that comes in through other packages: its build runs on the GPUs, and one file has one PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterfn.config.spec import EnvironmentSettings, Host
from clusterfn.environment import packages, resolve
from clusterfn.environment.cuda import GpuCapabilities
from clusterfn.environment.specification import Specification
from clusterfn.errors import EnvironmentBuildError
from tests.unit.environment.shelf import Shelf, shelf_in

OLD = GpuCapabilities("575.57.08", ("8.6",), "nvidia-smi says on tensor01")
NEW = GpuCapabilities("595.45.04", ("8.6",), "nvidia-smi says on tensor01")
# PyTorch 2.9 and newer has a build for CUDA 13 alone, so that no index of PyTorch is asked.
TABLE = """\
builds:
- {cuda: "12.6", torch: ["2.9", null], capabilities: ["12.0"]}
- {cuda: "12.8", torch: ["2.9", null], capabilities: ["12.0"]}
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    with shelf_in(tmp_path, monkeypatch) as made:
        monkeypatch.chdir(made.project)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        for version in ("2.8.0", "2.15.0"):
            made.wheel("torch", version)
        made.wheel("accelerate", requires="torch>=2")
        made.wheel("newest", requires="torch>=2.15")
        (tmp_path / "table.yml").write_text(TABLE)
        yield made


def read(shelf: Shelf, place: str, wanted: str) -> Specification:
    if place == "packages=":
        return packages.from_packages(["python=3.11", f"pip:{wanted}"])
    if place == "requirements.txt":
        shelf.write(f"{wanted}\n", place)
    elif place == "pyproject.toml":
        shelf.pyproject(f'"{wanted}"')
    else:
        shelf.write(f"dependencies:\n- python=3.11\n- pip:\n  - {wanted}\n", place)
    return shelf.read(place)


def locked(
    shelf: Shelf, spec: Specification, gpus: GpuCapabilities | None, has: GpuCapabilities | None = OLD
) -> str:
    """The version of PyTorch in the lock for a call."""
    settings = EnvironmentSettings(table=str(shelf.folder.parent / "table.yml"))
    host = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2", making=settings)
    facts = {"platform": "linux-x86_64", "glibc": "2.28", "root": "/root", "uid": "0"}
    made = resolve.resolve_environment(spec, host, facts, gpus, (3, 11), shelf.said.append, lambda: has)
    return next(each.version for each in made.lock.packages if each.name == "torch")


@pytest.mark.parametrize("wanted", ["accelerate", "torch"])
@pytest.mark.parametrize("place", ["requirements.txt", "pyproject.toml", "environment.yml", "packages="])
def test_a_file_has_one_pytorch_that_runs_on_the_gpus_whichever_call_comes_first(
    shelf: Shelf, place: str, wanted: str
):
    spec = read(shelf, place, wanted)

    assert locked(shelf, spec, None) == "2.8.0"
    assert locked(shelf, spec, OLD) == "2.8.0"
    if spec.project:  # where conda's packages may depend on CUDA, a call with GPUs solves once more
        assert sum("solving" in line for line in shelf.said) == 1
    assert locked(shelf, spec, None) == "2.8.0"


def test_a_newer_driver_keeps_the_newest_pytorch(shelf: Shelf):
    assert locked(shelf, read(shelf, "requirements.txt", "accelerate"), NEW) == "2.15.0"


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
    none_runs = GpuCapabilities("300.1", ("8.6",), "nvidia-smi says on tensor01")

    assert locked(shelf, spec, None, has=None) == "2.15.0"
    (shelf.project / "requirements.conda-lock.yml").unlink()
    assert locked(shelf, spec, None, has=none_runs) == "2.15.0"


def test_a_build_for_gpus_that_cannot_be_had_is_told_and_a_call_without_gets_the_newest(shelf: Shelf):
    spec = read(shelf, "requirements.txt", "newest")

    assert locked(shelf, spec, None) == "2.15.0"
    assert any("PyTorch for GPUs cannot be had" in line for line in shelf.said)


def test_a_lock_for_other_machines_too_has_their_newest_pytorch(shelf: Shelf):
    shelf.write("platforms: [osx-arm64]\ndependencies:\n- python=3.11\n- pip:\n  - accelerate\n", "environment.yml")
    settings = EnvironmentSettings(table=str(shelf.folder.parent / "table.yml"))
    host = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2", making=settings)
    facts = {"platform": "linux-x86_64", "glibc": "2.28", "root": "/root", "uid": "0"}

    made = resolve.resolve_environment(
        shelf.read("environment.yml"), host, facts, OLD, (3, 11), shelf.said.append, lambda: OLD
    )

    found = {each.platform: each.version for each in made.lock.packages if each.name == "torch"}
    assert found == {"linux-64": "2.8.0", "osx-arm64": "2.15.0"}
