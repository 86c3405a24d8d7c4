"""`clusterfn run train.py --lr 0.1`: an existing script as it is, in a job that has its project as working folder.

The project is the working directory if the script is in or below it, else the script's folder. Git decides what belongs
to it (.gitignore holds); outside of a repository it is everything but hidden folders, caches and environments.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterfn.api.decorator import ClusterFunction, cluster
from clusterfn.calls import console
from clusterfn.calls.call import job_name
from clusterfn.calls.files import Directory, holds_credentials
from clusterfn.cli import screen
from clusterfn.cli.submission import call_options, start_detached
from clusterfn.config import config_file
from clusterfn.errors import ConfigError, did_you_mean

_MOST_BYTES = 200 << 20
_LARGEST = 5
_LEFT_OUT = frozenset(["__pycache__", "node_modules", "venv", "env"])
_SIGNALLED = 128
_DECORATED = re.compile(r"^@(?:clusterfn\.)?cluster\b[^\n]*(?:\n[@ )#][^\n]*)*\n(?:async )?def (\w+)", re.MULTILINE)
Script = Callable[[Path, str, Sequence[str]], None]


def run_script(given: argparse.Namespace) -> int:
    """Run the script on its host; its exit status becomes ours, 128 and more for a signal."""
    with _prepared(given) as (called, arguments):
        if given.detach:
            return start_detached(called, arguments, {}, as_json=given.json)
        code = 0
        try:
            with contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext():
                called(*arguments)
        except subprocess.CalledProcessError as error:
            code = error.returncode if error.returncode > 0 else _SIGNALLED - error.returncode
    if given.json:
        print(screen.as_json({"script": given.target, "exit_status": code}))
    elif code:
        console.warn(f"{given.target} has exited with status {code}")
        if found := _DECORATED.search(Path(given.target).read_text(encoding="utf-8", errors="replace")):
            hint = f"python {given.target}, or for one function: clusterfn run {given.target}::{found[1]}"
            console.warn(f"{given.target} sends its functions itself, so it is meant to run here: {hint}")
    return code


def describe_script(given: argparse.Namespace) -> str:
    """Return what `run` would send and start for a script."""
    with _prepared(given) as (called, arguments):
        return called.script(*arguments)


@contextlib.contextmanager
def _prepared(given: argparse.Namespace) -> Iterator[tuple[ClusterFunction[Any, None], tuple[Any, ...]]]:
    """Find the script and its project, and yield what to call, and with which arguments."""
    script = _existing(given.target)
    config_file.running(script)
    root = _project_of(script)
    called = cluster(**{"name": job_name(script.stem), **call_options(given)})(script_runner())
    with _staged(root, script) as project:
        yield called, (Directory(project), script.relative_to(root).as_posix(), tuple(given.script_words))


def script_runner() -> Script:
    """Return the function that a job calls: it runs a script in a copy of its project."""

    def run_script_of_project(project: Path, script: str, words: Sequence[str]) -> None:
        import contextlib  # the function travels by value, without this module
        import os
        import shutil
        import subprocess
        import sys

        sent = {}
        for folder, _, names in os.walk(project):
            for source in (os.path.join(folder, name) for name in names):
                path = os.path.relpath(source, project)
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                shutil.copyfile(source, path)
                os.chmod(path, 0o700 if os.access(source, os.X_OK) else 0o600)
                sent[path] = (os.stat(path).st_mtime_ns, os.stat(path).st_size)
        try:
            environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
            status = subprocess.call([sys.executable, script, *words], env=environ)
        finally:
            for path, before in sent.items():  # what stays is what the script has made or changed
                with contextlib.suppress(OSError):
                    if (os.stat(path).st_mtime_ns, os.stat(path).st_size) == before:
                        os.unlink(path)
        if status:
            raise subprocess.CalledProcessError(status, [script, *words])

    return run_script_of_project


def _existing(target: str) -> Path:
    path = Path(target)
    if not path.is_file():
        others = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = did_you_mean(path.name, others)
        raise ConfigError(f"there is no file {target}{near}", hint=f"the path is relative to {Path.cwd()}")
    return path.resolve()


def _project_of(script: Path) -> Path:
    """Return the folder that the job gets.

    Raises:
        ConfigError: It is the home directory, or the root of the file system.
    """
    here = Path.cwd().resolve()
    root = here if here in script.parents else script.parent
    if root in (Path.home().resolve(), Path(root.anchor)):
        hint = "put the script into a folder of its own, and run it from there"
        raise ConfigError(f"the project of {script.name} would be all of {root}", hint=hint)
    return root


@contextlib.contextmanager
def _staged(root: Path, script: Path) -> Iterator[Path]:
    """Make a folder of links to the project's files, named as the project, for as long as it is sent.

    Raises:
        ConfigError: They are too large.
    """
    members = sorted({*_members(root), script})
    withheld = [path for path in members if path != script and holds_credentials(path)]
    if withheld:
        shown = ", ".join(path.relative_to(root).as_posix() for path in withheld)
        console.warn(f"not sent, because they look like keys or passwords: {shown}")
    members = [path for path in members if path not in withheld]
    _refuse_large(root, members)
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-project-"))
    try:
        project = folder / (root.name or "project")
        for path in members:
            link = project / path.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        yield project
    finally:
        shutil.rmtree(folder)


def _members(root: Path) -> Iterator[Path]:
    """Yield the files of a project."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    with contextlib.suppress(FileNotFoundError):  # no git
        asked = subprocess.run(listing, capture_output=True, check=False)
        if asked.returncode == 0:
            paths = (root / os.fsdecode(name) for name in asked.stdout.split(b"\0") if name)
            yield from (path for path in paths if path.is_file())
            return
    for above, folders, names in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _LEFT_OUT]
        folders[:] = [each for each in folders if not Path(above, each, "pyvenv.cfg").exists()]
        yield from (path for path in (Path(above, name) for name in names) if path.is_file())


def _refuse_large(root: Path, members: Sequence[Path]) -> None:
    sizes = {path.relative_to(root).as_posix(): path.stat().st_size for path in members}
    total = sum(sizes.values())
    if total > _MOST_BYTES:
        largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:_LARGEST]
        raise ConfigError(
            f"the project {root} is {screen.size(total)}, more than {screen.size(_MOST_BYTES)}",
            evidence=[f"{screen.size(sizes[name])}  {name}" for name in largest],
            hint="list large files in .gitignore, and keep data on the host: pass its path to the script",
        )
