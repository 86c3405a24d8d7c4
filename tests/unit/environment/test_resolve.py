"""Which channels `packages=` means: those that are named, else those of the user's .condarc, else conda-forge."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.environment import resolve


@pytest.fixture(autouse=True)
def condarc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's .condarc, which is not there yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CONDARC", str(tmp_path / "condarc"))
    return tmp_path / "condarc"


def channels(*packages: str) -> tuple[str, ...]:
    return resolve.read_specification(None, packages).channels


def test_conda_forge_where_nothing_is_said() -> None:
    assert channels("python=3.11", "pip:rich") == ("conda-forge",)


def test_those_of_condarc_in_its_place(condarc: Path) -> None:
    condarc.write_text("channels: [https://mirror.example/main, nodefaults]\n")

    assert channels("numpy") == ("https://mirror.example/main",)
    assert channels("numpy", "bioconda::samtools") == ("https://mirror.example/main", "bioconda")


def test_no_channel_that_no_package_names() -> None:
    assert channels("file:///c::python=3.11", "file:///c::numpy", "pip:rich") == ("file:///c",)
    assert channels("file:///c::numpy", "six") == ("conda-forge", "file:///c")
    assert channels("pip:rich") == ("conda-forge",)
