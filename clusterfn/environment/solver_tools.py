"""Find what solving takes from this machine: an interpreter with conda-lock, a conda, and pip's settings.

`uv` uses the part that installs a missing tool, and pip's settings, too.

It looks for conda-lock in this interpreter, then in that of `conda-lock` in PATH. Else it installs conda-lock into a
virtual environment in the user's cache.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterfn.bridge.supervisor.text import shortened
from clusterfn.config import places
from clusterfn.errors import LockError

REQUIREMENTS = ("conda-lock>=4,<5", "py-rattler>=0.20,<1")
PATIENCE_S = 15.0  # between two messages while it is installed
INSTALL = "pip install '.[lock]' in your clone of clusterfn"
_LEAST_PYTHON = (3, 10)
_LEAST_CONDA = (4, 6)  # older ones give conda-lock other answers
_CONDAS = ("mamba", "micromamba", "conda")
_VARIABLES = ("MAMBA_EXE", "CONDA_EXE")
_HAS = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"

PYPI = "https://pypi.org/simple"
_FOR_REQUESTS = {"REQUESTS_CA_BUNDLE": "cert", "HTTPS_PROXY": "proxy", "HTTP_PROXY": "proxy"}
_SECTIONS = ("global", "download", "install", ":env:")  # the later count


def find_conda(say: Callable[[str], None]) -> str:
    """Return the path of the user's mamba, micromamba or conda; "" if none can solve."""
    named = [os.environ.get(name) for name in _VARIABLES]
    for path in filter(None, [*map(shutil.which, _CONDAS), *named]):
        version = _version(path)
        least = _LEAST_CONDA if Path(path).stem.lower() == "conda" else (0, 0)
        if version and tuple(map(int, re.findall(r"\d+", version)[:2])) >= least:
            return path
        say(f"{path} is not used ({version or 'it does not answer'}): clusterfn uses its own solver")
    return ""


def _version(path: str) -> str:
    """Return the line in which it prints its version; "" if it prints none."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    text = (done.stdout or done.stderr).strip().splitlines()
    return text[0] if done.returncode == 0 and text and re.search(r"\d+\.\d+", text[0]) else ""


def find_interpreter(own_solver: bool, say: Callable[[str], None]) -> tuple[str, ...]:
    """Return the command that starts an interpreter with conda-lock.

    Args:
        own_solver: Whether py-rattler is needed too, as there is no conda.
        say: Called with a message when something is installed.

    Raises:
        LockError: There is none, and none can be made.
    """
    modules = ("conda_lock", "rattler") if own_solver else ("conda_lock",)
    if sys.version_info >= _LEAST_PYTHON and all(importlib.util.find_spec(name) for name in modules):
        return (sys.executable,)
    found = shutil.which("conda-lock")
    folder = Path(found).resolve().parent if found else None
    beside = (
        [folder / "python", folder / "python3", folder / "python.exe", folder.parent / "python.exe"] if folder else []
    )
    for python in map(str, filter(Path.is_file, beside)):
        if subprocess.run([python, "-I", "-c", _HAS, *modules], capture_output=True).returncode == 0:
            return (python, "-I")
    return (str(_own(say)), "-I")


def _own(say: Callable[[str], None]) -> Path:
    """Return the interpreter of our virtual environment; make that if it is missing."""
    base = sys.executable
    if sys.version_info < _LEAST_PYTHON:
        newer = (shutil.which(f"python3.{minor}") for minor in range(14, _LEAST_PYTHON[1] - 1, -1))
        base = next((each for each in newer if each and _version(each)), "")
    if not base:
        hint = f"in a newer Python: {INSTALL}"
        raise LockError("solving needs conda-lock, which needs Python 3.10 or newer", hint=hint)
    return own_interpreter(Tool("conda-lock", REQUIREMENTS, "220 MB", INSTALL), base, say)


@dataclass(frozen=True)
class Tool:
    """A program that is installed into the user's cache where it is missing.

    Attributes:
        size: What it takes there, for a message.
        install: The command with which the user installs it.
    """

    name: str
    requirements: tuple[str, ...]
    size: str
    install: str


def own_interpreter(tool: Tool, base: str, say: Callable[[str], None]) -> Path:
    """Return the interpreter of a virtual environment with a tool; make it if it is missing.

    Raises:
        LockError: It cannot be made.
    """
    # The real path names the version too: another Python at the same path cannot use what was installed for this one.
    digest = hashlib.sha256("\n".join([*tool.requirements, os.path.realpath(base)]).encode()).hexdigest()[:16]
    place = places.cache_folder() / "solver" / digest
    if not _python_of(place).exists():
        names = " and ".join(re.split(r"[<>=]", each)[0] for each in tool.requirements)
        say(f"installing {names} into {place}, once ({tool.size}; `clusterfn clean --local` removes it)")
        _make(tool, base, place, say)
    return _python_of(place)


def _python_of(place: Path) -> Path:
    return place / "Scripts" / "python.exe" if os.name == "nt" else place / "bin" / "python"


def _make(tool: Tool, base: str, place: Path, say: Callable[[str], None]) -> None:
    """Make the virtual environment under a temporary name and rename it, so that it is complete or absent."""
    beside = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    pip = [str(_python_of(beside)), "-m", "pip", "install", "--progress-bar=off", "--disable-pip-version-check"]
    try:
        _run(tool, [base, "-m", "venv", str(beside)], say)
        _run(tool, [*pip, *tool.requirements], say)
        if not _python_of(place).exists():  # another process may have made it, or its Python was removed
            shutil.rmtree(place, ignore_errors=True)
            beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _run(tool: Tool, argv: list[str], say: Callable[[str], None]) -> None:
    """Run a step of the installation, and say every 15 s what it does."""
    said: deque[str] = deque(maxlen=5)
    began = time.monotonic()
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        errors="replace",
    ) as process:  # fmt: skip
        reader = threading.Thread(target=said.extend, args=(map(str.rstrip, process.stdout or ()),), daemon=True)
        reader.start()
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_S)
                    break
                doing = shortened(said[-1], 100) if said else "it starts"
                say(f"still installing {tool.name} ({time.monotonic() - began:.0f} s): {doing}")
        except BaseException:  # Ctrl-C too: pip would go on without us
            process.kill()
            raise
        reader.join()
    if process.returncode:
        raise LockError(
            f"{tool.name}, which solving needs, could not be installed", evidence=tuple(said), hint=tool.install
        )


@dataclass(frozen=True)
class PipConfig:
    """pip's settings as far as they say where packages are.

    Attributes:
        indexes: The first is pip's own; none with no-index.
        variables: For requests, which the solver uses: a certificate, a proxy.
    """

    indexes: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def pip_config() -> PipConfig:
    """Ask this interpreter's pip where it finds packages, so that its files, variables and defaults count.

    Without pip only its variables count.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode == 0:
        return parse_pip_config(done.stdout)
    variables = [(name, value) for name, value in sorted(os.environ.items()) if name.startswith("PIP_")]
    return parse_pip_config(
        "\n".join(f":env:.{name[4:].lower().replace('_', '-')}={value!r}" for name, value in variables)
    )


def parse_pip_config(listing: str) -> PipConfig:
    """Parse what `pip config list` prints.

    Example:
        >>> parse_pip_config("global.index-url='https://mirror.example/simple'").indexes
        ('https://mirror.example/simple',)
    """
    found: dict[tuple[int, str], str] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in _SECTIONS and value:
            found[_SECTIONS.index(section), key] = str(ast.literal_eval(value))
    values = {key: found[order, key] for order, key in sorted(found)}  # of several sections the strongest
    first = [] if values.get("no-index", "").lower() in ("1", "true", "yes", "on") else [values.get("index-url", PYPI)]
    indexes = [*first, *values.get("extra-index-url", "").split()] if first else []
    return PipConfig(
        tuple(dict.fromkeys(url.rstrip("/") for url in indexes)),
        tuple(dict.fromkeys(values.get("find-links", "").split())),
        tuple((name, values[key]) for name, key in _FOR_REQUESTS.items() if values.get(key)),
    )
