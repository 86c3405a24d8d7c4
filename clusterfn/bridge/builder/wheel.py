"""Where the files of a wheel go: site-packages, scripts, headers, data; and what pip wants to know of them."""

import base64
import csv
import hashlib
import io
import os
import re

from .failure import Failed
from .manifest import File, Manifest
from .place import LINK, SCRIPT, WRITE, Target
from .scripts import of_wheel, script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping

    from .archives import Member
    from .place import Layout
    from .plan import Package

_INFO = re.compile(r"[^/]+\.dist-info/WHEEL\Z")
_DATA = re.compile(r"[^/]+\.data/(purelib|platlib|scripts|headers|data)/(.+)\Z")
_DROPPED = ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER")


def describe(package: "Package", folder: str, members: "Mapping[str, Member]") -> Manifest:
    """The manifest of an unpacked wheel."""
    found = [os.path.dirname(path) for path in members if _INFO.match(path)]
    if len(found) != 1:
        raise Failed("%s is no wheel: it has %d dist-info folders" % (package.file, len(found)), stage="unpack")
    info = found[0]
    points = of_wheel(_read(os.path.join(folder, info, "entry_points.txt")))
    files = [File(path, each.size, each.executable) for path, each in sorted(members.items())]
    return Manifest(package.name, package.version, "wheel", {"info": info}, None, points, files)


def place(layout: "Layout", manifest: Manifest, package: "Package", folder: str) -> None:
    """Add the wheel's files to an environment, its commands, RECORD and INSTALLER."""
    info = manifest.facts["info"]
    dropped = {"%s/%s" % (info, name) for name in _DROPPED}
    placed = [_placed(layout, manifest, file, folder) for file in manifest.files if file.path not in dropped]
    commands = [script(line, layout.python) for line in manifest.entry_points]
    placed += [Target("bin/" + each[0], WRITE, folder, executable=True, content=each[1]) for each in commands if each]
    placed.append(Target("%s/%s/INSTALLER" % (layout.site, info), WRITE, folder, content=b"clusterfn\n"))
    for target in placed:
        layout.add(target)
    record = "%s/%s/RECORD" % (layout.site, info)
    layout.add(Target(record, WRITE, folder, content=_record(placed, record, layout.site, folder, info)))


def _placed(layout: "Layout", manifest: Manifest, file: File, folder: str) -> Target:
    source = os.path.join(folder, "files", file.path)
    match = _DATA.match(file.path)
    kind, rest = (match.group(1), match.group(2)) if match else ("purelib", file.path)
    how = SCRIPT if kind == "scripts" and _is_python(source) else LINK
    place = {
        "purelib": layout.site + "/",
        "platlib": layout.site + "/",
        "scripts": "bin/",
        "headers": "include/python%d.%d/%s/" % (layout.version + (manifest.name,)),
        "data": "",
    }[kind]
    return Target(place + rest, how, folder, source, file.size, file.executable)


def _is_python(path: str) -> bool:
    """Whether a script's first line is the mark that stands for the environment's interpreter."""
    try:
        with open(path, "rb") as file:
            return file.read(8) == b"#!python"
    except FileNotFoundError:  # told where it is linked
        return False


def _record(placed: "Iterable[Target]", record: str, site: str, folder: str, info: str) -> bytes:
    """RECORD as pip writes it: paths seen from site-packages, hash and size of what is as in the wheel."""
    before = _hashes(os.path.join(folder, "files", info, "RECORD"))
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    for target in sorted(placed):
        found = _hash(target.content) if target.how == WRITE else before.get(target.inside, ("", ""))
        lines.writerow((os.path.relpath(target.path, site),) + (("", "") if target.how == SCRIPT else found))
    lines.writerow((os.path.relpath(record, site), "", ""))
    return out.getvalue().encode("utf-8", "surrogateescape")


def _hash(data: bytes) -> "tuple[str, str]":
    found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return "sha256=" + found, str(len(data))


def _hashes(path: str) -> "dict[str, tuple[str, str]]":
    rows = csv.reader(io.StringIO(_read(path)))
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""
