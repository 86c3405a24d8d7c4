"""Hosts for the contract suites: this machine under each Python that can be found, and the lab."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.hosts.connection import HostConnection, connect
from tests.interpreters import interpreter

Connect = Callable[..., HostConnection]
ODD = ["a b", "$HOME", "`id`", "it's", "", "-n", "*", "line\nbreak", "ü", "!", "\\", '"', "%j"]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def find_python(minor: int) -> str:
    """An interpreter of this machine; the test is skipped if there is none."""
    path = interpreter(f"3.{minor}")
    if path is None:
        pytest.skip(f"no Python 3.{minor} on this machine")
    return path


@pytest.fixture
def connect_to() -> Iterator[Connect]:
    """`connect` whose connections are closed after the test."""
    opened: list[HostConnection] = []

    def open_one(host: Host, **more: Any) -> HostConnection:
        opened.append(connect(host, **more))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def local_host(tmp_path: Path) -> Host:
    """This machine, with a root of its own."""
    return Host("here", "", "local", "clusterfn.yml:1", root=str(tmp_path / "root"))


@pytest.fixture(
    params=[6, *(pytest.param(minor, marks=pytest.mark.long) for minor in range(7, 14))],
    ids=lambda minor: f"py3{minor}",
)
def here(request: pytest.FixtureRequest, connect_to: Connect, tmp_path: Path) -> HostConnection:
    """This machine with an agent under the oldest Python; in test-long under each newer one too."""
    root = str(tmp_path / "root")
    return connect_to(Host("here", "", "local", "clusterfn.yml:1", root=root, python=find_python(request.param)))


@pytest.fixture
def lab_host(lab: Any) -> Callable[[str], Host]:
    """A host of the lab by its ssh alias."""

    def make(alias: str, root: str = "~/.clusterfn") -> Host:
        return Host(alias, alias, "bare", "clusterfn.yml:1", ssh_config=str(lab.ssh_config), root=root)

    return make
