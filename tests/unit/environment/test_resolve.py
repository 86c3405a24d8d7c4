"""What an environment is made of: the channels that `packages=` means, and which hosts share one."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.environment import resolve
from clusterfn.environment.lock import EnvironmentLock, LockedPackage


@pytest.fixture(autouse=True)
def condarc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's .condarc, which is not there yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CONDARC", str(tmp_path / "condarc"))
    return tmp_path / "condarc"


def channels(*packages: str) -> tuple[str, ...]:
    return resolve.read_specification(None, packages).channels


def test_those_of_condarc_in_its_place(condarc: Path) -> None:
    condarc.write_text("channels: [https://mirror.example/main, nodefaults]\n")

    assert channels("numpy") == ("https://mirror.example/main",)
    assert channels("numpy", "bioconda::samtools") == ("https://mirror.example/main", "bioconda")


def test_no_channel_that_no_package_names() -> None:
    assert channels("file:///c::python=3.11", "file:///c::numpy", "pip:rich") == ("file:///c",)
    assert channels("file:///c::numpy", "six") == ("conda-forge", "file:///c")
    assert channels("pip:rich") == ("conda-forge",)


@pytest.mark.parametrize(("file", "is_shared"), [("gift-2.5-py3-none-any.whl", True), ("gift-2.5.tar.gz", False)])
def test_hosts_that_share_a_root_share_no_environment_for_which_one_has_built_a_wheel(
    file: str, is_shared: bool
) -> None:
    gift = LockedPackage("gift", "2.5", "pip", f"https://e.example/{file}", "a" * 64, "linux-64")
    lock, host = EnvironmentLock(Path("x.lock"), (gift,), ("linux-64",)), Host("a", "a", "bare", "clusterfn.yml:2")

    old, new = (
        resolve.LockedEnvironment("x", lock, "linux-64", "/root", host, glibc=each) for each in ("2.28", "2.36")
    )

    assert (old.id == new.id) is is_shared
