"""A host in a folder, with the bridge, Python 3.6 where there is one, and the lab's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.layout import layout_bridge
from tests.builder import toys
from tests.builder.host import Host
from tests.interpreters import interpreter

if TYPE_CHECKING:
    from tests.lab import Lab

USER = "cfbash"


@pytest.fixture(scope="session")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bridge/<hash>, byte-compiled by its first use."""
    return layout_bridge(tmp_path_factory.mktemp("builder") / "bridge")


@pytest.fixture
def host(bridge: Path, tmp_path: Path) -> Iterator[Host]:
    """A host with the oldest Python of this machine and an empty root."""
    found = Host(tmp_path / "root", bridge, interpreter("3.6") or sys.executable)
    yield found
    found.close()


@pytest.fixture(scope="module")
def ordinary_host(lab: Lab) -> Iterator[Callable[[str], Host]]:
    """Make a host, which has this Python, below an empty folder of an ordinary user's, who has no network."""
    import pwd  # of Unix, as the lab is

    user = pwd.getpwnam(USER)
    top = lab.home(USER) / f"builder-{os.getpid()}"
    made: list[Host] = []

    def make(minor: str) -> Host:
        folder = top / str(len(made))
        folder.mkdir(parents=True)
        if not made:
            layout_bridge(top / "bridge")
        subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", str(top)], check=True)
        ids = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        made.append(Host(folder / "root", top / "bridge", str(lab.python(minor)), ["unshare", "-n", *ids]))
        return made[-1]

    yield make
    for host in made:
        host.close()
    shutil.rmtree(top)


@pytest.fixture
def python(tmp_path: Path) -> dict[str, Any]:
    """The package of a Python, as a plan names it."""
    return toys.python(tmp_path / "shelf")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Where a test puts its packages."""
    return tmp_path / "shelf"
