"""What is said before an environment is downloaded: its size, if it is large, and where it goes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.calls import environment_upload
from clusterfn.config.spec import Host
from clusterfn.environment import download
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.errors import HostError

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")


def package(name: str, url: str = "") -> LockedPackage:
    return LockedPackage(name, "1", "pip", url or f"{name}.whl", name * 8, "linux-64")


def said(theirs: list[LockedPackage], ours: list[LockedPackage], sizes: dict[str, int]) -> list[str]:
    lines: list[str] = []
    lock = EnvironmentLock(Path("e.conda-lock.yml"), (*theirs, *ours), ("linux-64",))
    made = LockedEnvironment("requirements.txt", lock, "linux-64", "/data/envs", HOST)
    known = {**{name * 8: size for name, size in sizes.items()}, **download.download_sizes(ours)}
    environment_upload.tell_download(made, theirs, ours, known, lines.append)
    return lines


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_the_host_fetches_is_reported_with_its_size_if_it_is_large():
    torch, cuda = package("torch"), package("cublas")

    assert said([torch, cuda], [], {"torch": 900_000_000, "cublas": 600_000_000})[1:] == [
        "requirements.txt: 1.4 GB for /data/envs on tensor01: tensor01 fetches 1.4 GB (torch 858.3 MB, cublas 572.2 MB)"
    ]
    assert len(said([torch], [], {"torch": 900_000_000})) == 1


def test_what_this_machine_sends_counts_too_and_what_is_unknown_is_reported(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(environment_upload, "MUCH", 1000)
    wheel = tmp_path / "own.whl"
    wheel.write_bytes(b"x" * 800)
    own, unknown = package("own", wheel.as_uri()), package("gone", (tmp_path / "gone.whl").as_uri())

    line = said([package("torch")], [own, unknown], {"torch": 700})[1]

    assert line.startswith("requirements.txt: at least 1.5 KB for /data/envs on tensor01: tensor01 fetches 700 bytes")
    assert len(said([package("torch")], [own], {"torch": 100})) == 1


@pytest.mark.parametrize(
    "answer", [{"stage": "none"}, {"missing": ["of no package"], "unreachable": [], "sizes": {}}, {"missing": 3}]
)
def test_a_host_that_lacks_what_nobody_named_is_reported_as_such(answer: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_upload, "plan_document", lambda *_: {})
    monkeypatch.setattr(environment_upload, "zstd_wheel", lambda _: None)
    monkeypatch.setattr(environment_upload.environment_builder, "run_builder", lambda *_, **__: [answer])
    session: Any = SimpleNamespace(missing=list, host=HOST)
    lock = EnvironmentLock(Path("e.conda-lock.yml"), (package("torch"),), ("linux-64",))
    made = LockedEnvironment("requirements.txt", lock, "linux-64", "/data/envs", HOST)

    with pytest.raises(HostError, match="tensor01 sent which archives it lacks in a form"):
        environment_upload.upload_missing(session, made, print, print)
