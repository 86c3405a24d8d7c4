"""Find uv and run it. It resolves wheels for another platform than this one's, and is one file without dependencies.

It looks for the uv of this interpreter, then for `uv` in PATH. Else it installs uv into the user's cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterfn.bridge.builder.fetch import masked
from clusterfn.environment import solver_tools
from clusterfn.environment.solver_tools import PYPI, PipConfig, Tool

PATIENCE_S = 15.0  # between two messages while it is resolving
TOOL = Tool("uv", ("uv>=0.12,<1",), "60 MB", "pip install '.[uv]' in your clone of clusterfn")
_LEAST = (0, 12)  # 0.9 lists wheels that do not fit the host
# They would change what is asked for: this interpreter, its GPU, another output.
_NOT_PASSED = (
    "UV_TORCH_BACKEND", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_FROZEN", "UV_LOCKED", "UV_OFFLINE", "UV_NO_SYNC",
    "UV_REQUIRE_HASHES", "UV_CUSTOM_COMPILE_COMMAND", "UV_PROJECT", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY",
    "UV_NO_BINARY",
)  # fmt: skip
# They narrow what uv may choose, and no file of the project has them: its lock would depend on who makes it. The files
# of a uv.lock have no dates, so that UV_EXCLUDE_NEWER would leave none. `uv export` needs it, as a uv.lock notes it.
_OF_CHOICE = ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_EXCLUDE_NEWER")
_INDEXES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS")
# What uv says of a server that does not answer, or not as one should.
_NO_ANSWER = re.compile(
    r"Failed to fetch|error sending request|Request failed after|dns error|[Cc]onnection (?:refused|reset)"
    r"|invalid peer certificate|operation timed out|Could not connect",
)


@dataclass(frozen=True)
class UvResult:
    """How uv ended.

    Attributes:
        status: 0 if it succeeded.
        text: What it wrote to stderr, without passwords.
    """

    status: int
    text: str

    @property
    def unreachable(self) -> bool:
        """Whether an index does not answer, so that it is unknown whether there is a solution."""
        return bool(_NO_ANSWER.search(self.text)) and "is not defined" not in self.text

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty."""
        return [line.rstrip() for line in self.text.splitlines() if line.strip()]


def find_uv(say: Callable[[str], None]) -> str:
    """Return the path of a uv that is new enough; install one if there is none.

    Raises:
        LockError: None can be installed.
    """
    name = "uv.exe" if sys.platform == "win32" else "uv"
    for path in filter(None, [shutil.which(name, path=sysconfig.get_path("scripts")), shutil.which("uv")]):
        version = _version(path)
        if version >= _LEAST:
            return path
        found = ".".join(map(str, version)) or "it does not answer"
        say(f"{path} is not used ({found}): clusterfn needs uv {'.'.join(map(str, _LEAST))} or newer")
    return str(solver_tools.own_interpreter(TOOL, sys.executable, say).with_name(name))


def _version(path: str) -> tuple[int, ...]:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.match(r"uv (\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if done.returncode == 0 and found else ()


def run(
    argv: Sequence[str], folder: Path, variables: Mapping[str, str], waiting: Callable[[float], None], given: str = ""
) -> UvResult:
    """Run uv in a folder.

    Args:
        folder: Of the project: relative paths and uv's own settings begin there.
        variables: All variables that it sees.
        waiting: Called every 15 s with the seconds that it has run.
        given: What it reads from stdin.
    """
    began = time.monotonic()
    with subprocess.Popen(
        list(argv), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder,
        env=dict(variables), encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            while True:
                try:
                    text = process.communicate(given or None, timeout=PATIENCE_S)[1]
                    break
                except subprocess.TimeoutExpired:
                    given = ""  # is on its way
                    waiting(time.monotonic() - began)
        except BaseException:  # Ctrl-C too: uv would go on without us
            process.kill()
            raise
    return UvResult(process.returncode, masked(text))


def without_choices(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that narrow the versions from which uv chooses."""
    return {name: value for name, value in variables.items() if name not in _OF_CHOICE}


def plain_variables() -> dict[str, str]:
    """Return this process's variables without those of uv that say where packages are."""
    return {name: value for name, value in _variables(PipConfig(())).items()
            if name not in _INDEXES and not re.match(r"UV_INDEX_\w+_(USERNAME|PASSWORD)$", name)}  # fmt: skip


def variables_with_indexes(pip: PipConfig, *, has_indexes: bool, has_default: bool) -> dict[str, str]:
    """Return this process's variables, and pip's settings as variables of uv: a command line is seen by others.

    Args:
        has_indexes: uv's own settings name an index: then pip's further ones do not count, as uv asks them first.
        has_default: uv's own settings name an index in PyPI's place: then pip's does not count.
    """
    found = _variables(pip)
    if pip.indexes and pip.indexes[0] != PYPI and not has_default:
        found["UV_DEFAULT_INDEX"] = pip.indexes[0]
    if len(pip.indexes) > 1 and not has_indexes:
        found["UV_EXTRA_INDEX_URL"] = " ".join(pip.indexes[1:])
    if pip.find_links:
        found["UV_FIND_LINKS"] = ",".join([*pip.find_links, *filter(None, [found.get("UV_FIND_LINKS")])])
    return found


def _variables(pip: PipConfig) -> dict[str, str]:
    """Return this process's variables for uv, with pip's certificate and proxy under the names that uv knows."""
    found = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
    found |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    settings = {**dict(pip.variables), **found}
    if settings.get("REQUESTS_CA_BUNDLE"):
        found.setdefault("SSL_CERT_FILE", settings["REQUESTS_CA_BUNDLE"])
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        if settings.get(name):
            found.setdefault(name, settings[name])
    return found
