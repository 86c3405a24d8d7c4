"""Environments that nobody named, and below a root that a group shares."""

from __future__ import annotations

import grp
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import cluster
from tests.e2e.conftest import MINOR, Hosts, root_in_home
from tests.lab.newcomer import ACCOUNTS
from tests.lab.processes import held

pytestmark = pytest.mark.lab


def prefix() -> tuple[str, str]:
    import sys

    import numpy

    return sys.prefix, numpy.__version__


prefix.__module__ = "__main__"


@pytest.fixture
def environments(
    lab: Any, hosts: Hosts, channel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """Write clusterfn.yml with an empty root of environments; its path is given back."""
    roots = root_in_home()
    root = next(roots)
    packages = json.dumps([f"python={MINOR}", "numpy"])
    (tmp_path / "environment.yml").write_text(f"channels: [{channel.url}, nodefaults]\ndependencies: {packages}\n")
    monkeypatch.chdir(tmp_path)

    def write(extra: str = "", names: tuple[str, ...] = ("tensor01",)) -> Path:
        path = tmp_path / "clusterfn.yml"
        hosts.describe(lab, path, hosts.python, f"env_root: {root}\n{extra}", names)
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
        return root

    yield write
    next(roots, None)


IMPORTS = """
import yaml
def version():
    import sys
    return yaml.__version__, sys.prefix, sys.version_info[:2]
"""


def test_without_a_word_it_is_made_from_what_the_function_imports(
    environments, channel, lab, tmp_path, monkeypatch, capsys
):
    import sys

    import yaml

    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "conda-forge").symlink_to(channel.url[len("file://") :])
    (tmp_path / "condarc").write_text(f"channel_alias: file://{mirror}\n")
    monkeypatch.setenv("CONDARC", str(tmp_path / "condarc"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environments()
    path = tmp_path / "clusterfn.yml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if " environment:" not in line))
    (tmp_path / "imports_from_here.py").write_text(IMPORTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import imports_from_here  # type: ignore[import-not-found]

    version, prefix, minor = cluster(host="tensor01")(imports_from_here.version)()

    assert version == yaml.__version__
    assert "/envs/" in prefix and tuple(minor) == sys.version_info[:2]
    said = capsys.readouterr().err
    assert "no environment is set: clusterfn builds one from your imports: Python" in said
    assert f"pyyaml {version}" in said


@pytest.fixture
def group() -> Iterator[int]:
    """A group of the accounts cfbash and cfsecond."""
    name = f"cfgroup{secrets.token_hex(2)}"
    with held(ACCOUNTS):  # they wait for one another for some seconds only
        subprocess.run(["groupadd", name], check=True)
        for account in ("cfbash", "cfsecond"):
            subprocess.run(["usermod", "-a", "-G", name, account], check=True)
    yield grp.getgrnam(name).gr_gid
    with held(ACCOUNTS):
        subprocess.run(["groupdel", name], check=True)


def test_a_group_shares_what_one_of_it_has_built(environments, hosts, lab, group, tmp_path, monkeypatch):
    environments()
    shared = Path("/var/tmp") / f"group-{secrets.token_hex(4)}"
    shared.mkdir()
    os.chown(shared, 0, group)
    shared.chmod(0o2770)
    try:
        path = tmp_path / "clusterfn.yml"
        hosts.describe(lab, path, hosts.python, f"env_root: {shared}\nowners: ['{group}']", ("py37", "py37-second"))
        first, _ = cluster(host="py37", environment="environment.yml")(prefix)()
        ready = Path(first) / "READY"
        built = ready.stat().st_mtime_ns
        second, _ = cluster(host="py37-second", environment="environment.yml")(prefix)()

        assert second == first
        assert ready.stat().st_mtime_ns == built
    finally:
        shutil.rmtree(shared, ignore_errors=True)
