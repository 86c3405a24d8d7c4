"""Packages of a few hundred bytes: a Python that is the test's own under another prefix, conda packages, wheels.

No test in here.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.builder.host import entry
from tests.lab.condapackage import Entry, Package, write

PLACEHOLDER = "/placehold_" * 20
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/python{MINOR}/site-packages"


def conda(folder: Path, name: str, files: Mapping[str, bytes | Entry], **more: Any) -> dict[str, Any]:
    """A conda package in `folder`, as a line of a plan."""
    entries = {path: each if isinstance(each, Entry) else Entry(each) for path, each in files.items()}
    package = Package(name, "1.0", "h0_0", entries, formats=(".tar.bz2",), **more)
    write(package, folder)
    return entry(folder / package.subdir / f"{package.stem}.tar.bz2")


def python(folder: Path, base: Path | None = None) -> dict[str, Any]:
    """A package that gives a Python a prefix, as a virtual environment does: this one, or another of its minor."""
    base = base or Path(sys.base_prefix) / "bin" / f"python{MINOR}"
    files = {
        "bin/python": Entry(link=str(base)),
        "pyvenv.cfg": Entry(f"home = {base.parent}\ninclude-system-site-packages = false\n".encode()),
        f"lib/python{MINOR}/toy.py": Entry(b"STANDARD = 1\n"),
    }
    package = Package("python", f"{MINOR}.0", "h0_0", files, formats=(".tar.bz2",))
    write(package, folder)
    return entry(folder / "linux-64" / f"{package.stem}.tar.bz2")


def module(folder: Path, name: str, count: int = 1) -> dict[str, Any]:
    """A conda package with a module and `count` files of data."""
    files = {f"{SITE}/{name}/__init__.py": f"__version__ = '1.0'\nNAME = {name!r}\n".encode()}
    files.update({f"{SITE}/{name}/data{number}.txt": b"%d\n" % number for number in range(count)})
    return conda(folder, name, files)


def wheel(folder: Path, name: str, files: Mapping[str, bytes], **more: bytes) -> dict[str, Any]:
    """A wheel, with its RECORD; `more` are files of its dist-info, their names with _ for a dot."""
    info = f"{name}-1.0.dist-info"
    members = dict(files)
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members.update({f"{info}/{key.replace('__', '.')}": data for key, data in more.items()})
    members[f"{info}/RECORD"] = _record(members, f"{info}/RECORD")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return entry(path)


def _record(members: Mapping[str, bytes], own: str) -> bytes:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    for path, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows.writerow((path, f"sha256={digest}", len(data)))
    rows.writerow((own, "", ""))
    return out.getvalue().encode()


# A build backend in the source itself, which needs no other package. `wheel` may be replaced by what a test does there.
BACKEND = """
import os, sys, zipfile

def get_requires_for_build_wheel(settings=None):
    return {more}

def build_wheel(folder, settings=None, metadata=None):
    {before}
    name = "{name}-1.0-py3-none-any.whl"
    info = "{name}-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("{name}.py", open("{name}.py").read())
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "RECORD", "")
    return name
"""


def sdist(folder: Path, name: str, files: Mapping[str, str], version: str = "1.0") -> Path:
    """A source distribution with these files, which says itself what it depends on: nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    head = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in {"PKG-INFO": head, **files}.items():
            member = tarfile.TarInfo(f"{name}-{version}/{file}")
            member.size, member.mtime = len(text.encode()), 1600000000
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def with_backend(name: str, before: str = "pass", more: str = "[]", requires: str = "[]") -> dict[str, str]:
    """The files of a source distribution that builds itself, after these lines of Python."""
    table = f'[build-system]\nrequires = {requires}\nbuild-backend = "own"\nbackend-path = ["."]\n'
    backend = BACKEND.format(name=name, before=before.replace("\n", "\n    "), more=more)
    return {"pyproject.toml": table, "own.py": backend, f"{name}.py": f"NAME = {name!r}\n"}


# What `pip wheel` does with a source distribution as above: it calls the backend, in a folder of its own.
PIP = b"""
import os, sys, tarfile, tempfile
source, wheels = sys.argv[-1], sys.argv[sys.argv.index("--wheel-dir") + 1]
os.chdir(tempfile.mkdtemp())
with tarfile.open(source) as archive:
    archive.extractall()
os.chdir(os.listdir(".")[0])
sys.path.insert(0, os.getcwd())
import own
own.build_wheel(wheels)
"""


def pip(folder: Path) -> dict[str, Any]:
    """A wheel of so much of pip as `with_backend` needs."""
    return wheel(folder, "pip", {"pip/__init__.py": b"", "pip/__main__.py": PIP})
