"""Modules that a session loads before its calls: each call is as if it had loaded them itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bridge.session.serving import Client, Server, of_main


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The modules of a virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    return next((tmp_path / "venv" / "lib").glob("python*/site-packages"))


@pytest.fixture
def start_there(packages: Path, start: Callable[..., Server]) -> Callable[[], Server]:
    """Starts a session in that environment, whose own modules alone are loaded before calls."""
    python = str(packages.parents[2] / "bin" / "python")
    return lambda: start(python=python, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))


@of_main
def whose(*names: str) -> list[str]:
    import importlib

    return [importlib.import_module(name).WHOSE for name in names]


def write(folder: Path, whose: str, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"WHOSE = {whose!r}\n")


def test_a_module_of_the_users_is_never_replaced_by_one_of_the_environment(
    packages: Path, tmp_path: Path, start_there: Callable[[], Server]
):
    write(packages, "environment", "helpers.py")
    write(tmp_path / "sources", "user", "helpers.py")
    server = start_there()
    client = Client(server)
    sent: dict[str, Any] = {"facts": {"sys_path": [str(tmp_path / "sources")]}}

    for number in (1, 2):
        client.send(number, whose, "helpers", **sent)

    assert [client.end(number)[1] for number in (1, 2)] == [["user"], ["user"]]
    assert server.close()["loaded beforehand"] == []


def test_a_module_of_the_environment_makes_way_in_a_call_that_has_one_of_its_own(
    packages: Path, tmp_path: Path, start_there: Callable[[], Server]
):
    write(packages, "environment", "helpers/__init__.py", "helpers/part.py", "other/__init__.py", "other/part.py")
    write(tmp_path / "sources", "user", "helpers/__init__.py", "helpers/part.py", "other/part.py")
    server = start_there()
    client = Client(server)
    names = ("helpers", "helpers.part", "other.part")
    sent: dict[str, Any] = {"facts": {"sys_path": [str(tmp_path / "sources")]}}

    client.send(1, whose, *names)
    client.send(2, whose, *names, **sent)
    client.send(3, whose, *names)

    assert client.end(1)[1] == ["environment"] * 3
    assert client.end(2)[1] == ["user", "user", "environment"], "a folder alone takes no module's place in an import"
    assert client.end(3)[1] == ["environment"] * 3
    assert server.close()["loaded beforehand"] == ["helpers", "other"]
