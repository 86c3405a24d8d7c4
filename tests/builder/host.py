"""Runs the builder as a host does: the bridge laid out in a folder, an old Python, plans as the client writes them.

No test in here.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bridge.host import clean_environ
from tests.waiting import WAIT_S, until


def entry(archive: Path, url: str | None = None) -> dict[str, Any]:
    """One package of a plan; by default it lies where a file:// address says."""
    name, version, build = _parts(archive.name)
    return {
        "name": name, "version": version, "build": build, "manager": "pip" if archive.suffix == ".whl" else "conda",
        "file": archive.name, "url": archive.as_uri() if url is None else url, "size": archive.stat().st_size,
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }  # fmt: skip


def _parts(name: str) -> tuple[str, str, str]:
    if name.endswith(".whl"):
        return (*name.split("-")[:2], "")  # type: ignore[return-value]
    stem = name.removesuffix(".conda").removesuffix(".tar.bz2")
    return tuple(stem.rsplit("-", 2))  # type: ignore[return-value]


@dataclass
class Answer:
    """What a command of the builder printed, and how it ended."""

    rc: int
    lines: list[dict[str, Any]]
    err: str

    @property
    def last(self) -> dict[str, Any]:
        assert self.lines, self.err
        return self.lines[-1]


@dataclass
class Running:
    """A command of the builder on its way."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def lines(self) -> list[dict[str, Any]]:
        """What it has printed so far."""
        return [json.loads(line) for line in self.out.read_text().splitlines(True) if line.endswith("\n")]

    def waits(self) -> dict[str, Any]:
        """Its line that says for whom it waits, as soon as it is there."""
        return until(lambda: next((line for line in self.lines() if line["stage"] == "wait"), None))

    def answer(self, limit_s: float = WAIT_S) -> Answer:
        """Wait for its end."""
        return Answer(self.process.wait(limit_s), self.lines(), self.err.read_text())


@dataclass
class Host:
    """A host with a root, an old Python and the bridge.

    Attributes:
        before: What stands before the command: another user, no network.
    """

    root: Path
    bridge: Path
    python: str
    before: Sequence[str] = ()
    owners: Sequence[str] = ()
    started: list[Running] = field(default_factory=list)

    def plan(self, packages: Iterable[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A plan of these packages; its id is theirs unless it is given."""
        packages = list(packages)
        env_id = hashlib.sha256(json.dumps([each["sha256"] for each in packages]).encode()).hexdigest()[:16]
        return {
            "format": 1, "id": env_id, "root": str(self.root), "platform": "linux-64", "python": sys.version_info[:2],
            "packages": packages, "fetch": True, "zstd": None, "verify": [], "about": "environment.yml",
            "owners": list(self.owners), **more,
        }  # fmt: skip

    def start(self, plan: dict[str, Any], **env: str) -> Running:
        """`build.py build` of a plan."""
        folder = self.root.parent / "plans"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{plan['id']}.json"
        if not path.exists() or path.read_text() != json.dumps(plan):
            path.write_text(json.dumps(plan))
        return self.start_command("build", str(path), **env)

    def start_command(self, *arguments: str, **env: str) -> Running:
        """Another command."""
        argv = [*self.before, self.python, "-I", "-S", str(self.bridge / "build.py"), *arguments]
        folder = self.root.parent / "outputs"
        folder.mkdir(exist_ok=True)
        out, err = (folder / f"{len(self.started)}.{name}" for name in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=clean_environ(**env), cwd="/",
            )  # fmt: skip
        self.started.append(Running(process, out, err))
        return self.started[-1]

    def build(self, plan: dict[str, Any], **env: str) -> Answer:
        """Build it, and wait."""
        return self.start(plan, **env).answer()

    def call(self, *arguments: str) -> Answer:
        """Another command, to its end: `list`, `repair`, ..."""
        return self.start_command(*arguments).answer()

    def prefix(self, plan: dict[str, Any]) -> Path:
        return self.root / "envs" / plan["id"]

    def run(self, plan: dict[str, Any], program: str, *arguments: str) -> str:
        """What a program of the environment prints."""
        argv = [*self.before, str(self.prefix(plan) / "bin" / program), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, env=clean_environ(), cwd="/", timeout=150)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def leftovers(self) -> list[str]:
        """What stands aside in the folders of environments and packages."""
        folders = [self.root / "envs", self.root / "pkgs"]
        return [path.name for folder in folders if folder.exists() for path in folder.iterdir() if path.name[0] == "."]

    def close(self) -> None:
        """End what a failed test left running."""
        for running in self.started:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()
