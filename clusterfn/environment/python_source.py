"""Where the Python of a project's environment comes from: python-build-standalone, or the host.

    environment="pyproject.toml[python:host]"     in brackets, for one function
    env_python: /usr/bin/python3.11               in clusterfn.yml, for a host

Pure, no I/O. `host_python` asks the host, `standalone` finds the archive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterfn.config.forms import PYTHON_SOURCES, is_python_source
from clusterfn.errors import ConfigError

STANDALONE, HOST = PYTHON_SOURCES
_PART = "python:"


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

    @property
    def lock_suffix(self) -> str:
        """The end of the name of its lock: hosts with another Python have another lock.

        Example:
            >>> PythonSource(HOST, found=HostPython("/usr/bin/python3.11", "3.11.4", "2.28", "")).lock_suffix
            '-host-python-3.11.4'
        """
        return f"-host-python-{self.found.version}" if self.found else ""


def parse_source(text: str, place: str = "") -> PythonSource:
    """Parse what stands behind `python:` or `env_python:`; "" is nothing.

    Raises:
        ConfigError: It is no source.

    Example:
        >>> parse_source("host").kind, parse_source("~/py/bin/python3").program
        ('host', '~/py/bin/python3')
    """
    if not text or text in PYTHON_SOURCES:
        return PythonSource(text)
    if not is_python_source(text):
        raise ConfigError(
            f"{place}{text!r} does not say where Python comes from",
            hint=f'write one of {", ".join(PYTHON_SOURCES)}, or the path of an interpreter, "/usr/bin/python3.11"',
        )
    return PythonSource(HOST, text)


def split_source(parts: Sequence[str]) -> tuple[PythonSource, tuple[str, ...]]:
    """Split what is in brackets into the source of Python, and the rest.

    Raises:
        ConfigError: There are two, or one is no source.

    Example:
        >>> split_source(["gpu", "python:host"])[1]
        ('gpu',)
    """
    named = [part for part in parts if part.startswith(_PART)]
    if len(named) > 1:
        raise ConfigError(f"two sources of Python are named: {' and '.join(named)}", hint="keep one of them")
    rest = tuple(part for part in parts if part not in named)
    return parse_source(named[0][len(_PART) :].strip() if named else "", _PART), rest


def title_with(title: str, source: PythonSource) -> str:
    """Return the title of a specification as the user wrote it, with the source of Python.

    Example:
        >>> title_with("pyproject.toml[gpu]", PythonSource(HOST))
        'pyproject.toml[gpu,python:host]'
    """
    part = _PART + (source.program or source.kind)
    return f"{title[:-1]},{part}]" if title.endswith("]") else f"{title}[{part}]"
