"""A project in a folder, and the only wheels that there are: no test that uses it needs a network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.environment import (
    conda_solver,
    environment_files,
    lock,
    packages,
    resolve,
    solver,
    standalone_python,
    torch_build,
    uv,
    wheels,
)
from clusterfn.environment import download as downloads
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.lock import EnvironmentLock, LockedPackage, Unsolved
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.environment.specification import Specification
from clusterfn.environment.torch_build import GpuCapabilities
from clusterfn.errors import LockError
from tests.lock.conftest import make_wheel

CHANNEL = "https://conda.anaconda.org/conda-forge"
MIRROR = "https://pythons.example"
HOST = SolveTarget("linux-64", "2.28", None, "3.11")
BUILDS = torch_build.load_table()


def of_channel(minor: str, platform: str) -> list[LockedPackage]:
    """What a channel gives for a Python: itself, and setuptools."""
    return [
        LockedPackage(name, version, "conda", f"{CHANNEL}/{platform}/{name}-{version}-h0_0.conda", sha256, platform)
        for name, version, sha256 in
        [("python", f"{minor}.7", "a" * 64), ("setuptools", "80.0", "b" * 64)]
    ]  # fmt: skip


@dataclass
class Shelf:
    """The wheels, the project, what was said, and which Pythons were asked for."""

    folder: Path
    project: Path
    said: list[str] = field(default_factory=list)
    pythons: list[str] = field(default_factory=list)
    minors: tuple[str, ...] = ("3.10", "3.11", "3.12")
    patch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def indexes(self, *addresses: str) -> None:
        """Let uv's variables name these indexes, and no folder of wheels."""
        self.patch.delenv("UV_FIND_LINKS")
        self.patch.delenv("XDG_CONFIG_HOME")
        for name, values in (("UV_DEFAULT_INDEX", addresses[:1]), ("UV_EXTRA_INDEX_URL", addresses[1:])):
            if values:
                self.patch.setenv(name, " ".join(values))

    def wheel(self, name: str, version: str = "1.0", tag: str = "py3-none-any", requires: str = "") -> Path:
        return make_wheel(self.folder, name, version, tag=tag, requires=requires)

    def write(self, text: str, name: str = "pyproject.toml") -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def pylock(self, *packages: str) -> Path:
        return self.write('lock-version = "1.0"\n' + "".join(packages), "pylock.toml")

    def pyproject(self, dependencies: str, more: str = "", python: str = ">=3.9") -> Path:
        head = f'[project]\nname = "mine"\nversion = "0.1"\nrequires-python = "{python}"\n'
        return self.write(f"{head}dependencies = [{dependencies}]\n{more}")

    def read(self, name: str = "pyproject.toml", *parts: str) -> Specification:
        return environment_files.read_file(self.project / name, parts)

    def named(self, text: str) -> Specification:
        """What `environment=` means."""
        return resolve.read_specification(text, ())

    def packages(self, wanted: Iterable[str]) -> Specification:
        """What `packages=` means."""
        return packages.from_packages(wanted)

    def found(
        self, name: str = "pyproject.toml", *parts: str, target: SolveTarget = HOST, python: str = "3.11"
    ) -> dict[str, str]:
        """name -> version of the wheels that uv finds."""
        return {each.name: each.version for each in self.wheels(name, *parts, target=target, python=python)}

    def wheels(
        self, name: str = "pyproject.toml", *parts: str, target: SolveTarget = HOST, python: str = "3.11"
    ) -> list[LockedPackage]:
        return self.find(self.read(name, *parts), target, python)

    def find(self, spec: Specification, target: SolveTarget = HOST, python: str = "3.11") -> list[LockedPackage]:
        return wheels.WheelFinder(spec, spec.project, target, self.said.append).find(python)

    def refusal(self, name: str = "pyproject.toml", *parts: str, target: SolveTarget = HOST) -> LockError:
        """How finding fails."""
        with pytest.raises(LockError) as caught:
            self.wheels(name, *parts, target=target)
        return caught.value

    def lock(self, name: str = "pyproject.toml", *parts: str, target: SolveTarget = HOST) -> EnvironmentLock:
        return self.lock_of(self.read(name, *parts), target)

    def lock_of(self, spec: Specification, target: SolveTarget = HOST) -> EnvironmentLock:
        return solver.lock_for(spec, target, self.said.append)

    def read_lock(self, name: str) -> EnvironmentLock:
        return lock.read_lock(self.project / name)

    def lock_name(self, name: str = "pyproject.toml", *parts: str) -> str:
        """The name of the lock beside the file, which is not there yet."""
        path = solver.lock_beside(self.read(name, *parts))
        return path.name

    def environment(
        self, spec: Specification, gpus: GpuCapabilities | None = None, has: GpuCapabilities | None = None
    ) -> LockedEnvironment:
        """The environment of a call on tensor01: the GPUs that it asks for, and those that the host has."""
        host = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")
        facts = {"platform": "linux-x86_64", "glibc": "2.28", "root": "/root"}
        return resolve.resolve_environment(spec, host, facts, gpus, (3, 11), self.said.append, lambda: has)

    def uv_lock(self) -> Path:
        """Write uv.lock as the user does."""
        argv = [uv.find_uv(), "lock", "--quiet"]
        done = subprocess.run(argv, cwd=self.project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return self.project / "uv.lock"

    @property
    def settings(self) -> str:
        """What [tool.uv] says, so that uv itself uses these wheels alone."""
        return f'[tool.uv]\nno-index = true\nfind-links = ["{self.folder}"]\n'


def locked(name: str, version: str = "1.0", sha256: str = "a" * 64, *, server: str = "files", more: str = "") -> str:
    """A package of pylock.toml, with a wheel that is nowhere, and more lines."""
    file = f"{name}-{version.replace('+', '%2B')}-py3-none-any.whl"
    wheel = f'{{url = "https://{server}.invalid/{file}", hashes = {{sha256 = "{sha256}"}}}}'
    return f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{wheel}]\n{more}\n'


def where(marker: str) -> str:
    return f'marker = "{marker}"'


def download(package: LockedPackage, addresses: Sequence[tuple[str, str]] = ()) -> tuple[str, Path]:
    """The digest of its file, and the file in the cache of this machine."""
    (found,) = downloads.download_packages([package], lambda *_: None, addresses)
    return found


def pack_commit(address: str, name: str) -> str:
    """The digest of the archive of a commit, which is in the cache of this machine."""
    return downloads.pack_commit(address, name)


def capabilities(driver: str, *capabilities: str) -> GpuCapabilities:
    """What nvidia-smi says of the GPUs of tensor01."""
    return GpuCapabilities(driver, capabilities or ("8.6",), "nvidia-smi says on tensor01")


def choose_builds(monkeypatch: pytest.MonkeyPatch, choose: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
    """Let there be no other builds of PyTorch than those chosen from the real ones."""
    monkeypatch.setattr(torch_build, "load_table", lambda: replace(BUILDS, builds=tuple(choose(BUILDS.builds))))


def replace_uv(patch: pytest.MonkeyPatch, program: Path, lines: str) -> None:
    """Write lines of sh that take the place of uv; `UV` in them is the real one."""
    program.write_text("#!/bin/sh\n" + lines.replace("UV", uv.find_uv()))
    program.chmod(0o755)
    patch.setattr(uv, "find_uv", lambda: str(program))


def asked_of_uv(patch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What uv will have been asked: its arguments and variables. It finds nothing."""
    asked: list[tuple[list[str], dict[str, str]]] = []

    def run(argv: Sequence[str], *_: object, variables: Mapping[str, str], **__: object) -> Any:
        asked.append((list(argv), dict(variables)))
        return subprocess.CompletedProcess(argv, 1, "", "no solution")

    patch.setattr(conda_solver, "run_program", run)
    return asked


def make_shelf(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """A shelf that uv's variables name, and a channel and a mirror that have some Pythons."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    made = Shelf(folder / "wheels", folder / "project")
    made.folder.mkdir()
    made.project.mkdir()
    made.patch = monkeypatch
    monkeypatch.setenv("UV_FIND_LINKS", str(made.folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    (folder / "config" / "uv").mkdir(parents=True)
    (folder / "config" / "uv" / "uv.toml").write_text("no-index = true\n")

    def solve(spec: Specification, target: SolveTarget, say: object) -> list[LockedPackage]:
        minor = next((each.text.partition("=")[2] for each in spec.conda if each.name == "python"), target.python)
        return of_channel(minor, target.platform)

    def find_python(minor: str, platform: str, folder: Path) -> LockedPackage:
        if minor not in made.minors:
            raise Unsolved(f"there is no solution for Python {minor}")
        return LockedPackage("python", f"{minor}.7", "standalone", f"{MIRROR}/{minor}.7.tar.gz", "", platform)

    def with_hash(python: LockedPackage, say: object) -> LockedPackage:
        made.pythons.append(python.version.rpartition(".")[0])
        return replace(python, sha256="a" * 64)

    monkeypatch.setattr(conda_solver, "solve", solve)
    monkeypatch.setattr(standalone_python, "find_python", find_python)
    monkeypatch.setattr(standalone_python, "with_hash", with_hash)
    return made
