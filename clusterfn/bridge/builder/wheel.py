"""Place the files of a wheel (site-packages, scripts, headers, data), and write what pip wants to know of them."""

import base64
import csv
import hashlib
import io
import os
import re

from .errors import BuildFailed
from .layouts import LINK, SCRIPT, WRITE, Manifest, PackageFile, TargetFile
from .prefix import entry_point_script, wheel_entry_points

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping

    from .archives import Member
    from .layouts import Layout
    from .plan import PlannedPackage

_INFO = re.compile(r"[^/]+\.dist-info/WHEEL\Z")
_DATA = re.compile(r"[^/]+\.data/(purelib|platlib|scripts|headers|data)/(.+)\Z")
_DROPPED = ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER")


def describe(package: "PlannedPackage", folder: str, members: "Mapping[str, Member]") -> Manifest:
    """Return the manifest of an unpacked wheel."""
    found = [os.path.dirname(path) for path in members if _INFO.match(path)]
    if len(found) != 1:
        raise BuildFailed("%s is no wheel: it has %d dist-info folders" % (package.file, len(found)), stage="unpack")
    info = found[0]
    points = wheel_entry_points(_read(os.path.join(folder, info, "entry_points.txt")))
    files = [PackageFile(path, each.size, each.executable) for path, each in sorted(members.items())]
    return Manifest(package.name, package.version, "wheel", {"info": info}, None, points, files)


def place(layout: "Layout", manifest: Manifest, package: "PlannedPackage", folder: str) -> None:
    """Add the wheel's files, its commands, RECORD and INSTALLER to an environment."""
    info = manifest.facts["info"]
    dropped = {"%s/%s" % (info, name) for name in _DROPPED}
    placed = [_placed(layout, manifest, file, folder) for file in manifest.files if file.path not in dropped]
    commands = [entry_point_script(line, layout.python) for line in manifest.entry_points]
    placed += [
        TargetFile("bin/" + each[0], WRITE, folder, executable=True, content=each[1]) for each in commands if each
    ]
    placed.append(TargetFile("%s/%s/INSTALLER" % (layout.site, info), WRITE, folder, content=b"clusterfn\n"))
    for target in placed:
        layout.add(target)
    record = "%s/%s/RECORD" % (layout.site, info)
    layout.add(TargetFile(record, WRITE, folder, content=_record(placed, record, layout.site, folder, info)))


def _placed(layout: "Layout", manifest: Manifest, file: PackageFile, folder: str) -> TargetFile:
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
    return TargetFile(place + rest, how, folder, source, file.size, file.executable)


def _is_python(path: str) -> bool:
    """Return whether a script begins with `#!python`, which is replaced by the environment's interpreter."""
    try:
        with open(path, "rb") as file:
            return file.read(8) == b"#!python"
    except FileNotFoundError:  # reported when it is linked
        return False


def _record(placed: "Iterable[TargetFile]", record: str, site: str, folder: str, info: str) -> bytes:
    """Write RECORD as pip does: paths relative to site-packages, hash and size of unchanged files."""
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
