"""Packages of a few hundred bytes: a Python that is the test's own under another prefix, conda packages, wheels.

No test in here.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import sys
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
    return _python(folder, MINOR, base, {"bin/python": Entry(link=str(base))})


def python_by_script(folder: Path, base: Path, minor: str) -> dict[str, Any]:
    """The same without a link: old condas copy what a link leads to, and a copied Python may not find its library."""
    script = Entry(f'#!/bin/bash\nexec -a "$0" {base} "$@"\n'.encode(), 0o755)
    return _python(folder, minor, base, {"bin/python": script, f"bin/python{minor}": script})


def _python(folder: Path, minor: str, base: Path, programs: Mapping[str, Entry]) -> dict[str, Any]:
    files = {
        **programs,
        "pyvenv.cfg": Entry(f"home = {base.parent}\ninclude-system-site-packages = false\n".encode()),
        f"lib/python{minor}/toy.py": Entry(b"STANDARD = 1\n"),
    }
    package = Package("python", f"{minor}.0", "h0_0", files, formats=(".tar.bz2",))
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
