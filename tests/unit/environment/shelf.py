"""A project in a folder, and the only wheels that there are: no test that uses it needs a network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterfn.environment import conda_solver, environment_yml, solver, solver_tools, uv, wheels
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.lock import EnvironmentLock, Unsolved
from clusterfn.environment.solver_tools import PipConfig
from clusterfn.environment.specification import Specification
from clusterfn.environment.wheel_files import Wheel
from clusterfn.errors import LockError
from tests.lock.conftest import make_wheel

CHANNEL = "https://conda.anaconda.org/conda-forge"
HOST = SolveTarget("linux-64", "2.28", None, "3.11")


def python_lock(minor: str, *platforms: str) -> str:
    """What a channel gives for a Python: itself, and setuptools."""
    row = "- {{name: {0}, version: {1}, manager: conda, platform: {2}, url: '{4}/{2}/{0}-{1}-h0_0.conda', "
    row += "dependencies: {{}}, hash: {{sha256: {3}}}, category: main, optional: false}}\n"
    rows = [("python", f"{minor}.7", "a" * 64), ("setuptools", "80.0", "b" * 64)]
    packages = "".join(
        row.format(name, version, platform, sha256, CHANNEL) for platform in platforms for name, version, sha256 in rows
    )
    named = ", ".join(platforms)
    return f"version: 1\nmetadata: {{platforms: [{named}], channels: [], sources: []}}\npackage:\n{packages}"


@dataclass
class Shelf:
    """The wheels, the project, what was said, and which Pythons the channel was asked for."""

    folder: Path
    project: Path
    said: list[str] = field(default_factory=list)
    pythons: list[str] = field(default_factory=list)
    minors: tuple[str, ...] = ("3.10", "3.11", "3.12")

    def wheel(self, name: str, version: str = "1.0", tag: str = "py3-none-any", requires: str = "") -> Path:
        return make_wheel(self.folder, name, version, tag=tag, requires=requires)

    def write(self, text: str, name: str = "pyproject.toml") -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def pyproject(self, dependencies: str, more: str = "", python: str = ">=3.9") -> Path:
        head = f'[project]\nname = "mine"\nversion = "0.1"\nrequires-python = "{python}"\n'
        return self.write(f"{head}dependencies = [{dependencies}]\n{more}")

    def read(self, name: str = "pyproject.toml", *parts: str) -> Specification:
        return environment_yml.read_file(self.project / name, parts)

    def found(
        self, name: str = "pyproject.toml", *parts: str, target: SolveTarget = HOST, python: str = "3.11"
    ) -> dict[str, str]:
        """name -> version of the wheels that uv finds."""
        return {each.name: each.version for each in self.wheels(name, *parts, target=target, python=python)}

    def wheels(
        self, name: str = "pyproject.toml", *parts: str, target: SolveTarget = HOST, python: str = "3.11"
    ) -> list[Wheel]:
        return self.find(self.read(name, *parts), target, python)

    def find(self, spec: Specification, target: SolveTarget = HOST, python: str = "3.11") -> list[Wheel]:
        assert spec.project is not None
        return wheels.WheelFinder(spec, spec.project, target, self.said.append).find(python)

    def refusal(self, name: str = "pyproject.toml", *parts: str, target: SolveTarget = HOST) -> LockError:
        """How finding fails."""
        with pytest.raises((Unsolved, LockError)) as caught:
            self.wheels(name, *parts, target=target)
        return caught.value.error if isinstance(caught.value, Unsolved) else caught.value

    def lock(self, name: str = "pyproject.toml", *parts: str, target: SolveTarget = HOST) -> EnvironmentLock:
        return solver.lock_for(self.read(name, *parts), target, self.said.append)

    def uv_lock(self) -> Path:
        """Write uv.lock as the user does."""
        argv = [uv.find_uv(self.said.append), "lock", "--quiet"]
        done = subprocess.run(argv, cwd=self.project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return self.project / "uv.lock"

    @property
    def settings(self) -> str:
        """What [tool.uv] says, so that uv itself uses these wheels alone."""
        return f'[tool.uv]\nno-index = true\nfind-links = ["{self.folder}"]\n'


@contextmanager
def shelf_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """A shelf that pip's settings name, and a channel that has some Pythons."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    made = Shelf(folder / "wheels", folder / "project")
    made.folder.mkdir()
    made.project.mkdir()
    monkeypatch.setattr(solver_tools, "pip_config", lambda: PipConfig((), (str(made.folder),)))

    def solve(
        spec: Specification, target: SolveTarget, platforms: list[str], keeps: object, say: object
    ) -> tuple[bytes, dict[str, str]]:
        minor = next((each.text.partition("=")[2] for each in spec.conda if each.name == "python"), target.python)
        made.pythons.append(minor)
        if minor not in made.minors:
            raise Unsolved(LockError(f"there is no solution for {spec.title}"))
        return python_lock(minor, *platforms).encode(), dict.fromkeys(platforms, f"{minor}.7")

    monkeypatch.setattr(conda_solver, "solve", solve)
    monkeypatch.setattr(conda_solver, "refuse_unreachable", lambda spec: None)
    yield made
