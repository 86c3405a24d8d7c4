"""What the tests of locking share: a specification in a file, a host, and wheels that exist in folders only."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clusterfn.environment import conda_solver, environment_files
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.lock import EnvironmentLock
from clusterfn.environment.solver import lock_for
from tests.lab.channel import Channel

HOST = SolveTarget("linux-64", "2.28", None, "3.11")
_solved: dict[tuple[str, SolveTarget], str] = {}


@dataclass
class Bench:
    """environment.yml in a folder of its own, the lab's channel, and what was said."""

    folder: Path
    channel: str
    said: list[str] = field(default_factory=list)

    def write(self, text: str) -> Path:
        path = self.folder / "environment.yml"
        path.write_text(f"channels: [{self.channel}]\n{text}")
        return path

    def lock(self, dependencies: str, target: SolveTarget = HOST) -> EnvironmentLock:
        """The lock of `dependencies:` with these lines."""
        return self.lock_of(self.write(f"dependencies:\n{dependencies}"), target)

    def lock_of(self, path: Path, target: SolveTarget = HOST, **more: Any) -> EnvironmentLock:
        """The lock of a specification, or of another lock."""
        return lock_for(environment_files.read_file(path), target, self.said.append, **more)

    def locked(self, dependencies: str, target: SolveTarget = HOST) -> Path:
        """The path of such a lock, which is there from before: it is solved once for all tests."""
        path = self.folder / "environment.conda-lock.yml"
        if (dependencies, target) in _solved:
            self.write(f"dependencies:\n{dependencies}")
            path.write_text(_solved[dependencies, target])
        else:
            self.lock(dependencies, target)
            _solved[dependencies, target] = path.read_text()
        return path


@pytest.fixture
def bench(channel: Channel, tmp_path: Path) -> Bench:
    return Bench(tmp_path, channel.url)


@pytest.fixture
def no_solver(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on whoever wants to solve fails."""

    def forbid() -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("a solver is started")

        monkeypatch.setattr(conda_solver, "find_interpreter", refuse)
        monkeypatch.setenv("PATH", "")

    return forbid


@pytest.fixture
def uv_toml(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file of uv's settings; those of this machine do not count."""
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "uv" / "uv.toml"
    path.parent.mkdir(parents=True)
    return path


def names(lock: EnvironmentLock, manager: str = "conda", platform: str = "linux-64") -> dict[str, str]:
    """name -> version and build of the packages of one manager."""
    found = [each for each in lock.on(platform) if each.manager == manager]
    return {each.name: f"{each.version} {each.build}".strip() for each in found}


def make_wheel(folder: Path, name: str, version: str = "1.0", *, tag: str = "py3-none-any", requires: str = "") -> Path:
    """A wheel with nothing in it but what an index is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    metadata += "".join(f"Provides-Extra: {extra}\n" for extra in re.findall(r"extra == '(\w+)'", requires))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")  # uv unpacks a wheel in a folder
    return path


def make_index(folder: Path, wheel: Path) -> str:
    """An index in a folder, of one wheel that lies elsewhere; its address."""
    page = folder / wheel.name.partition("-")[0] / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{wheel.as_uri()}#sha256={sha256(wheel)}">{wheel.name}</a>')
    return folder.as_uri()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
