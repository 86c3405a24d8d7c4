"""Whether what files name can be imported: each environment is built on the lab's host with Python 3.6, by a call.

The host has no GPU. PyTorch with CUDA is gigabytes, so a build without is taken where pip finds one on this disk.
What does not import there is installed by `uv pip` into a venv and imported once more: this tells a fault of the
package from one of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.files.collect import CACHE
from benchmarks.place import MINOR, SCRIPTS
from clusterfn.environment import environment_files, uv
from tests.lab import Lab

ROOM = 6 * 10**9  # bytes of disk that are left to others
PATIENCE_S = 1500.0
IMPORTS, ALIKE, FAILS = "everything imports", "imports no better by pip", "does not import"
NEEDS_CUDA, UNBUILT, NO_ROOM = "needs CUDA's compiler", "is not built", "no room on the disk"
UNBUILT_ALIKE, OTHER_TORCH = "is not built by pip either", "wants another PyTorch"
WORDS = (IMPORTS, ALIKE, UNBUILT_ALIKE, NEEDS_CUDA, OTHER_TORCH, UNBUILT, FAILS, NO_ROOM)
HOST = "old"
FINAL = (IMPORTS, ALIKE, UNBUILT_ALIKE, NEEDS_CUDA, OTHER_TORCH)


@dataclass
class Built:
    """What came of a file.

    Attributes:
        why: What does not import, or the message that the user sees.
    """

    word: str
    why: str = ""
    modules: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Place:
    """The host, with its own root, and this client's variables."""

    lab: Lab
    root: Path
    env: Mapping[str, str]

    def build(self, path: Path) -> Built:
        """Build the environment of a file, and import there what the file names."""
        if shutil.disk_usage(self.root).free < ROOM:
            return Built(NO_ROOM)
        path = _without_cuda(path)
        spec = environment_files.read_file(path)
        names = [each.name for each in spec.pip]
        told = self._asked(path, names)
        if "error" in told:
            return Built(self._word(path, told["error"]), f"{told['kind']}: {told['error']}", [], told["seconds"])
        failed = told["failed"]
        if not failed:
            return Built(IMPORTS, "", told["modules"], told["seconds"])
        by_pip = self._by_pip(path, list(failed))
        word = ALIKE if all(each in by_pip for each in failed) else FAILS
        why = "; ".join(f"{name}: {said} (by pip: {by_pip.get(name, 'imports')})" for name, said in failed.items())
        return Built(word, why, told["modules"], told["seconds"])

    def _word(self, path: Path, error: str) -> str:
        if any(word in error for word in ("nvcc", "CUDA_HOME", "modules: [cuda]")):
            return NEEDS_CUDA
        if "+cpu, we can conclude" in error:
            return OTHER_TORCH
        return UNBUILT_ALIKE if self._by_pip(path, ["sys"]) else UNBUILT

    def _asked(self, path: Path, names: Sequence[str]) -> dict[str, Any]:
        argv = [sys.executable, str(SCRIPTS / "imports.py"), HOST, path.name, *names]
        said = path.with_name("said")
        with said.open("wb") as out:
            try:
                done = subprocess.run(
                    argv, cwd=path.parent, env=dict(self.env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=out, text=True, timeout=PATIENCE_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return {"kind": "takes too long", "error": said.read_text()[-600:], "seconds": PATIENCE_S}
        try:
            return dict(json.loads(done.stdout.splitlines()[-1]))
        except (ValueError, IndexError):
            return {"kind": "traceback", "error": said.read_text()[-600:], "seconds": 0.0}

    def _by_pip(self, path: Path, modules: Sequence[str]) -> dict[str, str]:
        """Return why modules cannot be imported where uv has installed the same file."""
        program = str(Path(sys.executable).with_name("uv"))
        settings = {name: value for name, value in uv.plain_variables().items() if name not in uv.OF_CHOICE}
        with tempfile.TemporaryDirectory(prefix="by-pip-", dir=CACHE) as name:
            python = f"{name}/bin/python"
            install = ["install", "-q", "--index-strategy", "unsafe-best-match", "--python", python, "-r", path.name]
            for words in (["venv", "-q", "--python", str(self.lab.python(MINOR)), name], ["pip", *install]):
                done = subprocess.run([program, *words], cwd=path.parent, env=settings, capture_output=True, text=True)
                if done.returncode:
                    return dict.fromkeys(modules, f"not installed: {done.stderr[-200:]}")
            found = {}
            for module in modules:
                done = subprocess.run([python, "-c", f"import {module}"], cwd=name, capture_output=True, text=True)
                if done.returncode:
                    found[module] = (done.stderr.strip().splitlines() or ["?"])[-1][:200]
            return found


def _without_cuda(path: Path) -> Path:
    """Return the file beside this one that asks for the PyTorch without CUDA of UV_FIND_LINKS, if there is one."""
    folders = map(Path, filter(None, os.environ.get("UV_FIND_LINKS", "").split(",")))
    found = sorted(each.name.split("-")[1] for folder in folders for each in folder.glob("torch-*+cpu-*.whl"))
    if not found or path.suffix != ".txt":
        return path
    beside, constraints = path.with_name(f"cpu-{path.name}"), path.with_name("cpu-torch.txt")
    constraints.write_text(f"torch=={found[-1]}\n")
    beside.write_text(f"-c {constraints.name}\n-r {path.name}\n")
    return beside


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """The lab's host with Python 3.6, and a newer one with headers; its root stays: what it has is not built again."""
    lab = Lab()
    folder = CACHE / "building"
    folder.mkdir(parents=True, exist_ok=True)
    root = lab.home("bash") / "built-files"
    lines = [f"address: py36-bash\n    ssh_config: {lab.ssh_config}", "scheduler: bare", "limits: {cores: 64}",
             f"root: ~/{root.name}", f"env_python: {lab.python(MINOR)}"]  # fmt: skip
    (folder / "clusterfn.yml").write_text("hosts:\n  " + HOST + ":\n" + "".join(f"    {each}\n" for each in lines))
    env = {key: value for key, value in os.environ.items() if not key.startswith(("CLUSTERFN_", "PYTHON"))}
    env.update(CLUSTERFN_CONFIG=str(folder / "clusterfn.yml"), XDG_STATE_HOME=str(folder / "state"))
    yield Place(lab, root.parent, env)
