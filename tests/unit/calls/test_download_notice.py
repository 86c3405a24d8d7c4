"""What is said before an environment is downloaded: its size, if it is large, and where it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.calls import download_notice
from clusterfn.config.spec import Host
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.resolve import LockedEnvironment

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")


def package(name: str, url: str = "") -> LockedPackage:
    return LockedPackage(name, "1", "", "pip", f"{name}.whl", url, name * 8, "linux-64")


def said(theirs: list[LockedPackage], ours: list[LockedPackage], sizes: dict[str, int]) -> list[str]:
    lines: list[str] = []
    lock = EnvironmentLock(Path("e.conda-lock.yml"), (*theirs, *ours), ("linux-64",))
    made = LockedEnvironment("requirements.txt", lock, "linux-64", "/data/envs", HOST)
    download_notice.tell_download(made, theirs, ours, {name * 8: size for name, size in sizes.items()}, lines.append)
    return lines


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_the_host_fetches_is_told_with_its_size_if_it_is_large():
    torch, cuda = package("torch"), package("cublas")

    assert said([torch, cuda], [], {"torch": 900_000_000, "cublas": 600_000_000})[1:] == [
        "requirements.txt: 1.5 GB for /data/envs on tensor01: tensor01 fetches 1.5 GB (torch 0.9 GB, cublas 0.6 GB)"
    ]
    assert len(said([torch], [], {"torch": 900_000_000})) == 1


def test_what_this_machine_sends_counts_too_and_what_is_unknown_is_told(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(download_notice, "MUCH", 1000)
    wheel = tmp_path / "own.whl"
    wheel.write_bytes(b"x" * 800)
    own, unknown = package("own", wheel.as_uri()), package("gone", (tmp_path / "gone.whl").as_uri())

    line = said([package("torch")], [own, unknown], {"torch": 700})[1]

    assert line.startswith("requirements.txt: at least 0.0 GB for /data/envs on tensor01: tensor01 fetches 0.0 GB")
    assert len(said([package("torch")], [own], {"torch": 100})) == 1
