"""The Python of an environment, if it is no conda package: an archive of python-build-standalone."""

from __future__ import annotations

import io
import os
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
