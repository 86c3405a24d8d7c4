"""Where the Python of a project's environment comes from: python-build-standalone, or the host.

    environment="pyproject.toml[python:host]"     in brackets, for one function
    env_python: /usr/bin/python3.11               in clusterfn.yml, for a host

`wheels` finds the archive. Of the host's interpreters one is chosen by what each says about itself: `question` is
the command to run there, and `choose` reads what it printed. Nothing here contacts the host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterfn.config.environment_kinds import PYTHON_SOURCES, is_python_source
from clusterfn.config.host_text import reading, shaped
from clusterfn.environment.existing import OLDEST
from clusterfn.environment.project import ProjectFile, admits, admits_release
from clusterfn.errors import ConfigError, EnvironmentBuildError, LockError

STANDALONE, HOST = PYTHON_SOURCES
_PART = "python:"
_MINORS = range(OLDEST[1], 20)  # of Python 3
# uv asks the indexes for each of them, so only a few are tried.
_TRIES = 4
_PREFIX = "clusterfn python "
_SHAPE = {
    **dict.fromkeys(("path", "given", "glibc", "abi", "implementation", "machine"), str),
    **dict.fromkeys(("release", "free_threaded", "copied"), bool),
    "version": [int],
    "bits": int,
}
_MOST_LINES = 10
_OTHER_SOURCES = "or take Python from elsewhere, env_python: standalone"
# Starts each candidate that exists; a broken one prints its own error.
_EACH = r"""
code=$1; shift
for p in "$@"; do
  case $p in
    "~/"*) p=$HOME/${p#??} ;;
    /*) ;;
    *) p=$(command -v "$p" 2>/dev/null) || continue ;;
  esac
  if [ -x "$p" ] && [ ! -d "$p" ]; then "$p" -I -c "$code" "$p" </dev/null || echo "$p ended with exit status $?"
  else echo "$p cannot be executed"; fi
done 2>&1
"""
# Any Python runs it, however old. A venv's bin/python is a link to the interpreter that it is made from, and only where
# an interpreter really is does it find its library as the base of another venv.
_DESCRIBE = r"""
import json, os, platform, sys, sysconfig
path, glibc = os.path.realpath(sys.executable), ""
try:
    glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2]
except (AttributeError, ValueError, OSError):
    pass
print(MARK + json.dumps({
    "given": sys.argv[1], "path": path, "version": list(sys.version_info[:3]),
    "release": sys.version_info[3] == "final", "bits": 64 if sys.maxsize > 2**32 else 32,
    "glibc": glibc, "machine": platform.machine(),
    "implementation": platform.python_implementation(), "abi": sysconfig.get_config_var("SOABI") or "",
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "copied": os.path.exists(os.path.join(os.path.dirname(os.path.dirname(path)), "pyvenv.cfg"))}))
""".replace("MARK", repr(_PREFIX))


@dataclass(frozen=True)
class HostPython:
    """An interpreter of a host, as it describes itself.

    Attributes:
        path: Absolute, on the host; not that of a venv, but of the interpreter that the venv is made from.
        version: "3.11.4".
        glibc: Of the C library that it runs with, "2.28".
        abi: What a compiled module must fit, "cpython-311-x86_64-linux-gnu".
    """

    path: str
    version: str
    glibc: str
    abi: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """What an environment that is built on it depends on."""
        return (self.path, self.version, self.abi)


@dataclass(frozen=True)
class PythonSource:
    """What the user says about it.

    Attributes:
        kind: STANDALONE or HOST; "" if the user says nothing, which means the former.
        program: Of the host: a path, or a name in PATH; "" for the one nearest to the caller's.
        found: The interpreter that the host has; None before it was asked, and for other kinds.
    """

    kind: str = ""
    program: str = ""
    found: HostPython | None = None


def parse_source(text: str, place: str = "") -> PythonSource:
    """Parse what stands behind `python:` or `env_python:`; "" is nothing. Raise ConfigError if it is no source."""
    if not text or text in PYTHON_SOURCES:
        return PythonSource(text)
    if not is_python_source(text):
        hint = f'write one of {", ".join(PYTHON_SOURCES)}, or the path of an interpreter, "/usr/bin/python3.11"'
        raise ConfigError(f"{place}{text!r} does not say where Python comes from", hint=hint)
    return PythonSource(HOST, text)


def split_source(parts: Sequence[str]) -> tuple[PythonSource, tuple[str, ...]]:
    """Split what is in brackets into the source of Python and the rest; raise ConfigError if two sources are named."""
    named = [part for part in parts if part.startswith(_PART)]
    if len(named) > 1:
        raise ConfigError(f"two sources of Python are named: {' and '.join(named)}", hint="keep one of them")
    rest = tuple(part for part in parts if part not in named)
    return parse_source(named[0][len(_PART) :].strip() if named else "", _PART), rest


def nearest_minors(project: ProjectFile, near: int) -> list[str]:
    """List the Pythons that a project admits, the caller's nearest first; raise LockError if it admits none."""
    nearest = sorted(_MINORS, key=lambda minor: (abs(minor - near), -minor))
    found = [f"3.{minor}" for minor in nearest if admits(project.requires_python, (3, minor))]
    if not found:
        oldest = f"Python {OLDEST[0]}.{OLDEST[1]} or newer, which functions need"
        what = f"{project.path.name} admits no {oldest}: its requires-python is {project.requires_python!r}"
        raise LockError(what, hint='write requires-python = ">=3.10"')
    return found[:_TRIES]


def question(source: PythonSource, project: ProjectFile, caller: tuple[int, int]) -> Sequence[str]:
    """Return the command that lets the interpreters of a host describe themselves; raise as `nearest_minors`."""
    candidates = [source.program]
    if not source.program:
        minors = nearest_minors(project, caller[1])
        candidates = [*(f"python{minor}" for minor in minors), "python3"]
    return ["/bin/sh", "-c", _EACH, "sh", _DESCRIBE, *candidates]


def choose(source: PythonSource, project: ProjectFile, platform: str, printed: str, host: str) -> HostPython:
    """Return the first interpreter that fits the project and the host, from what the command of `question` printed.

    Raise EnvironmentBuildError if none fits, with the reason for each.
    """
    lines = printed.splitlines()
    with reading(host, "what its interpreters say of themselves"):
        answers = [shaped(json.loads(line[len(_PREFIX) :]), _SHAPE) for line in lines if line.startswith(_PREFIX)]
    reasons = [line for line in lines if line.strip() and not line.startswith(_PREFIX)]
    for answer in answers:
        text = ".".join(map(str, answer["version"]))
        why_not = _why_not(answer, text, project, platform)
        if not why_not:
            return HostPython(answer["path"], text, answer["glibc"], answer["abi"])
        reasons.append(f"{answer['given']} {why_not}")
    path = f"{project.path.name}[python:/path/to/python3.11]"
    missing, hint = f"{host} has no Python", f'name its path, environment="{path}" or env_python: /path/to/python3.11'
    if source.program:
        missing, hint = f"{host} cannot use the Python {source.program}", "correct the path"
    message = f"{missing} for {project.path.name}"
    evidence = reasons[:_MOST_LINES] or ["there is none in PATH"]
    hint = f"{hint}; {_OTHER_SOURCES}"
    raise EnvironmentBuildError(message, host=host, stage="environment", evidence=evidence, hint=hint)


def _why_not(answer: Mapping[str, Any], text: str, project: ProjectFile, platform: str) -> str:
    """Say why no environment can be built on an interpreter of this version; "" if one can."""
    release = tuple(answer["version"])
    machine = platform.partition("-")[2]
    requires = project.requires_python
    other_machine = answer["bits"] != 64 or answer["machine"] != machine
    kind = f"a {answer['bits']}-bit program of {answer['machine']}"
    objections = (
        (answer["implementation"] != "CPython", f"is {answer['implementation']}, and wheels are for CPython"),
        (release[:2] < OLDEST, f"is Python {text}, and a function needs {OLDEST[0]}.{OLDEST[1]} or newer"),
        (not admits_release(requires, release), f"is Python {text}, and {project.path.name} requires {requires}"),
        (not answer["release"], f"is a test version of Python {text}, which uv finds no wheels for"),
        (answer["free_threaded"], "is built without the GIL, for which there are few wheels"),
        (other_machine, f"is {kind}, and wheels are chosen for {machine}"),
        (not answer["glibc"], "does not use glibc, for which wheels are chosen"),
        (answer["copied"], "belongs to a venv with a copy of its interpreter: name the one that it was made from"),
    )
    return next((sentence for objects, sentence in objections if objects), "")
