"""Where the Python of an environment comes from, if not from a conda package: the host, or python-build-standalone."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.builder import toys
from tests.builder.host import Host, entry
from tests.builder.toys import MINOR, SITE

BASE = Path(sys.base_prefix).resolve() / "bin" / f"python{MINOR}"
SAYS = "import json, sys, sysconfig as s; "
SAYS += "print(json.dumps([sys.prefix, sys.base_prefix, sys.path, s.get_path('purelib')]))"


def base(path: Path = BASE, version: str = platform.python_version()) -> dict[str, str]:
    return {"path": str(path), "version": version}


def on_base(host: Host, shelf: Path, **more: Any) -> dict[str, Any]:
    """A plan on this machine's own Python, with a wheel that has a program."""
    mine = toys.wheel(
        shelf, "mine", {"mine.py": b"def main():\n    print(__file__)\n"},
        entry_points__txt=b"[console_scripts]\nmine = mine:main\n",
    )  # fmt: skip
    return host.plan([mine], **{"base": base(), "verify": ["mine"], **more})


def test_an_environment_on_the_hosts_own_python_has_nothing_but_its_wheels(host: Host, shelf: Path):
    plan = on_base(host, shelf)

    assert host.build(plan).rc == 0

    prefix, of_base, path, purelib = json.loads(host.run(plan, "python", "-I", "-c", SAYS))
    assert prefix == str(host.prefix(plan)) and of_base == str(BASE.parents[1])
    assert purelib == f"{prefix}/{SITE}"
    assert [each for each in path if "site-packages" in each or "dist-packages" in each] == [purelib]
    assert host.run(plan, "mine") == f"{prefix}/{SITE}/mine.py"
    for name in ("python3", f"python{MINOR}"):
        assert host.run(plan, name, "-c", "import sys; print(sys.prefix)") == prefix
    ready = json.loads((host.prefix(plan) / "READY").read_text())
    assert ready["base"] == base() and ready["python"] == platform.python_version()
    assert ["python", platform.python_version(), "", "host"] in ready["packages"]
    assert host.build(plan).last["reused"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "fails (it cannot be started: No such file or directory)"),
        ("echo 3.99.1", "is Python 3.99.1"),
        ("echo no library; exit 3", "fails (it ended with status 3)"),
    ],
)
def test_a_base_that_is_not_what_was_locked_is_refused_before_anything_is_fetched(
    host: Host, shelf: Path, tmp_path: Path, content: str | None, why: str
):
    path = tmp_path / "python3.11"
    if content:
        path.write_text(f"#!/bin/sh\n{content}\n")
        path.chmod(0o755)

    answer = host.build(on_base(host, shelf, base=base(path, "3.11.4")))

    assert answer.rc == 1
    assert answer.last["message"].startswith(f"it is built on Python 3.11.4 of the host, and {path} {why} on ")
    assert answer.last["at"] == "python" and "run your program again" in answer.last["hint"]
    assert not (host.root / "pkgs").exists() or list((host.root / "pkgs").iterdir()) == []


@pytest.mark.parametrize("wrong", [{"path": "python3", "version": "3.11.4"}, {"path": "/p", "version": "3.11"}])
def test_a_base_that_is_none_is_no_plan(host: Host, shelf: Path, wrong: dict[str, str]):
    answer = host.build(on_base(host, shelf, base=wrong))

    assert answer.rc == 1 and "is no plan" in answer.last["message"]


def test_what_an_environment_on_the_hosts_python_has_lost_comes_back(host: Host, shelf: Path):
    plan = on_base(host, shelf)
    assert host.build(plan).rc == 0
    for path in ("pyvenv.cfg", "bin/python", f"{SITE}/mine.py"):
        (host.prefix(plan) / path).unlink()

    assert host.call("repair", str(host.root), plan["id"]).last["mended"]["relinked"] == 3
    assert host.run(plan, "mine").endswith("/mine.py")


def standalone(shelf: Path, files: Mapping[str, bytes], top: str = "python") -> dict[str, Any]:
    """An archive as python-build-standalone has them: here its Python is a venv of this one."""
    shelf.mkdir(parents=True, exist_ok=True)
    path = shelf / f"cpython-{MINOR}.9+20261110-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {"pyvenv.cfg": f"home = {BASE.parent}\n".encode(), **files}.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mode = len(data), 0o755 if name.startswith("bin/") else 0o644
            tar.addfile(info, io.BytesIO(data))
        for name, target in [("python", "python3"), ("python3", str(BASE))]:
            info = tarfile.TarInfo(f"{top}/bin/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    sha = entry_of(path)
    return {**sha, "name": "python", "version": f"{MINOR}.9", "build": "", "manager": "standalone"}


def entry_of(path: Path) -> dict[str, Any]:
    aside = path.with_name("python-1-0.tar.bz2")  # `entry` reads names of conda packages
    shutil.copy(path, aside)
    return {**entry(aside), "file": path.name, "url": path.as_uri()}


def test_a_python_of_python_build_standalone(host: Host, shelf: Path):
    library = f"lib/python{MINOR}"
    data = f"{library}/_sysconfigdata__linux_x86_64-linux-gnu.py"
    archive = standalone(shelf, {
        data: b"build_time_vars = {'prefix': '/install'}\n",
        f"{library}/os.py": b"'/install stays in other files'\n",
        f"{SITE}/pip/__init__.py": b"", "bin/pip3": b"#!/bin/sh\n",
        f"bin/python{MINOR}-config": b"#!/bin/sh\necho /install\n",
    })  # fmt: skip
    plan = host.plan([archive, toys.wheel(shelf, "mine", {"mine.py": b"X = 1\n"})], verify=["mine"])

    assert host.build(plan).rc == 0

    prefix = host.prefix(plan)
    assert host.run(plan, "python3", "-c", "import sys, mine; print(sys.prefix, mine.X)") == f"{prefix} 1"
    assert (prefix / data).read_text() == f"build_time_vars = {{'prefix': '{prefix}'}}\n"
    assert host.run(plan, f"python{MINOR}-config") == str(prefix)
    assert "/install stays" in (prefix / library / "os.py").read_text()
    assert not (prefix / SITE / "pip").exists() and not (prefix / "bin/pip3").exists()
    assert not (prefix / "conda-meta").exists()
    assert os.stat(prefix / library / "os.py").st_nlink > 1  # linked, not copied


@pytest.mark.parametrize(
    ("top", "why"), [("other", "is not in the folder python/"), ("python/..", "is not in the folder python/")]
)
def test_an_archive_of_another_shape_is_refused(host: Host, shelf: Path, top: str, why: str):
    answer = host.build(host.plan([standalone(shelf, {"x": b""}, top)]))

    assert answer.rc == 1 and why in answer.last["message"], answer.last
