"""Read what a conda package and a wheel say about their files, and place these files in an environment.

A conda package describes them in paths.json or has_prefix, with noarch and entry points; a wheel by the names of its
folders. Both leave a record of what is installed, by which conda and pip know it.
"""

import base64
import configparser
import csv
import hashlib
import io
import json
import os
import re
import shlex

from ..layout import MANIFEST, package_dir
from ..supervisor.text import native, portable
from .errors import BuildFailed
from .fetch import masked
from .link import (
    BINARY,
    LINK,
    SCRIPT,
    SYMLINK,
    TEXT,
    WRITE,
    Layout,
    Manifest,
    PackageDamaged,
    PackageFile,
    TargetFile,
    read_manifest,
    shebang,
)  # fmt: skip
from .plan import TAR_GZ, WHEEL
from .venv_layout import venv_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Optional

    from .archives import Member
    from .plan import BuildPlan, PlannedPackage

    Known = tuple[PlannedPackage, str, Manifest]

_HISTORY = b"==> made by clusterfn from a lock <==\n"
_OLD_PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"  # of has_prefix lines that name none
_WHEEL_INFO = re.compile(r"[^/]+\.dist-info/WHEEL\Z")
_WHEEL_DATA = re.compile(r"[^/]+\.data/(purelib|platlib|scripts|headers|data)/(.+)\Z")
_NOT_PLACED = ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER")
# The environment has the wheels of its lock alone, so neither the archive's pip and setuptools nor their programs.
_NOT_OF_PYTHON = re.compile(r"lib/python3\.\d+t?/site-packages/|bin/(pip|easy_install|wheel)[\d.]*\Z|share/man/")
_NAMES_PREFIX = re.compile(
    r"lib/python3\.\d+/(_sysconfigdata_[^/]*\.py|config-[^/]*/(Makefile|python-config\.py))\Z"
    r"|lib/pkgconfig/[^/]*\.pc\Z|bin/python3[\d.]*-config\Z"
)
_STANDALONE_PREFIX = "/install"
_ENTRY_POINT = re.compile(r"\s*([^\s=/]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)\s*(\[.*\])?\s*\Z")  # name = module:attribute
_ENTRY_POINT_SCRIPT = """import sys

from {module} import {first}

if __name__ == "__main__":
    sys.exit({attribute}())
"""


def describe_package(package: "PlannedPackage", folder: str, members: "Mapping[str, Member]") -> Manifest:
    """Return the manifest of an unpacked package."""
    describe = {WHEEL: _describe_wheel, TAR_GZ: _describe_standalone}.get(package.kind, _describe_conda)
    return describe(package, folder, members)


def layout_of_plan(plan: "BuildPlan", prefix: str) -> Layout:
    """Compute where every file of a plan's environment comes from.

    Raises:
        PackageDamaged: A package is missing, or has lost its manifest.
    """
    known = _read_manifests(plan)
    if plan.base is not None:
        made = Layout(prefix, plan.python)
        for target in venv_files(plan.base, plan.python):
            made.add(target)
        _place_packages(made, known)
        return made
    python = next((each for _, _, each in known if each.kind != "wheel" and each.name == "python"), None)
    if python is None:
        raise BuildFailed("the lock has no python", stage="plan", hint="name python in the environment's specification")
    made = Layout(prefix, plan.python, python.facts.get("python_site_packages_path"))
    _place_packages(made, known)
    if python.kind == "conda":
        made.add(TargetFile("conda-meta/history", WRITE, known[0][1], content=_HISTORY))
    return made


def layout_beside_conda(plan: "BuildPlan", prefix: str, site: "Optional[str]") -> Layout:
    """Compute what is added to an environment that conda has filled with a Python; raise as `layout_of_plan` does."""
    made = Layout(prefix, plan.python, site)
    _place_packages(made, _read_manifests(plan))
    return made


def _place_packages(layout: Layout, known: "list[Known]") -> None:
    place = {"conda": _place_conda, "wheel": _place_wheel, "standalone": _place_standalone}
    for package, folder, manifest in known:
        place[manifest.kind](layout, manifest, package, folder)


def _read_manifests(plan: "BuildPlan") -> "list[Known]":
    found = []
    for package in plan.packages:
        folder = package_dir(plan.root, package.sha256)
        manifest = read_manifest(os.path.join(folder, MANIFEST))
        if manifest is None:
            raise PackageDamaged(folder)
        found.append((package, folder, manifest))
    return found


def _describe_conda(package: "PlannedPackage", folder: str, members: "Mapping[str, Member]") -> Manifest:
    index = _json(folder, "info/index.json")
    if index is None:
        raise BuildFailed("%s is no conda package: it has no info/index.json" % package.file, stage="unpack")
    link = _json(folder, "info/link.json") or {}
    prefixes, files = _prefixes(folder), []
    for path in _listed_paths(folder, members):
        member = members.get(path)
        if member is None:
            raise BuildFailed("it lists %s and does not hold it" % path, stage="unpack")
        placeholder, mode = prefixes.get(path, (None, None))
        files.append(PackageFile(path, member.size, member.executable, member.link, placeholder, mode))
    linked, noarch = link.get("noarch") or {}, index.get("noarch")
    return Manifest(
        str(index.get("name", package.name)), str(index.get("version", package.version)), "conda", index,
        linked.get("type") or ("generic" if noarch is True else str(noarch) if noarch else None),
        list(linked.get("entry_points") or ()), files,
    )  # fmt: skip


def _listed_paths(folder: str, members: "Mapping[str, Member]") -> "list[str]":
    """List the paths to link: those that the package lists, else all that it holds."""
    described = _json(folder, "info/paths.json")
    if described is not None:
        named = [each["_path"] for each in described["paths"] if each.get("path_type") != "directory"]
    else:
        listed = _text(folder, "info/files")
        named = listed.split("\n") if listed is not None else list(members)
    paths = {os.path.normpath(path) for path in named if path and not path.startswith("info/")}
    return sorted(path for path in paths if path in members or not path.endswith(".pyc"))  # stale ones are gone


def _prefixes(folder: str) -> "dict[str, tuple[str, str]]":
    described = _json(folder, "info/paths.json")
    if described is not None:
        return {
            os.path.normpath(each["_path"]): (each["prefix_placeholder"], each.get("file_mode") or TEXT)
            for each in described["paths"]
            if each.get("prefix_placeholder")
        }
    found = {}
    for line in (_text(folder, "info/has_prefix") or "").split("\n"):
        parts = shlex.split(line) if line.strip() else []
        if len(parts) == 3 and parts[1] in (TEXT, BINARY):
            found[os.path.normpath(parts[2])] = (parts[0], parts[1])
        elif parts:
            found[os.path.normpath(line.strip())] = (_OLD_PLACEHOLDER, TEXT)
    return found


def _place_conda(layout: Layout, manifest: Manifest, package: "PlannedPackage", folder: str) -> None:
    python, placed = manifest.noarch == "python", []
    for file in manifest.files:
        placed.append(_placed(file, _noarch_path(file.path, layout) if python else file.path, folder))
    if python:
        placed += _entry_point_scripts(manifest, layout, folder)
    for target in placed:
        layout.add(target)
    layout.add(_conda_record(manifest, package, folder, [target.path for target in placed]))


def _noarch_path(path: str, layout: Layout) -> str:
    top, slash, rest = path.partition("/")
    if slash and top == "site-packages":
        return layout.site + "/" + rest
    return "bin/" + rest if slash and top == "python-scripts" else path


def _conda_record(manifest: Manifest, package: "PlannedPackage", folder: str, paths: "Iterable[str]") -> TargetFile:
    """Write conda-meta/….json, by which conda and pip know what is installed."""
    url = masked(package.url)
    record = dict(
        manifest.facts, fn=package.file, url=url, channel=url.rsplit("/", 2)[0], sha256=package.sha256,
        files=sorted(paths), link={"source": folder, "type": 1}, requested_spec="",
    )  # fmt: skip
    data = json.dumps(portable(record), indent=1).encode()
    name = "%s-%s-%s.json" % (manifest.name, manifest.version, manifest.facts.get("build", package.build))
    return TargetFile("conda-meta/" + name.replace("/", "_"), WRITE, folder, content=data)


def _describe_wheel(package: "PlannedPackage", folder: str, members: "Mapping[str, Member]") -> Manifest:
    found = [os.path.dirname(path) for path in members if _WHEEL_INFO.match(path)]
    if len(found) != 1:
        raise BuildFailed("%s is no wheel: it has %d dist-info folders" % (package.file, len(found)), stage="unpack")
    info = found[0]
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(_text(os.path.join(folder, info), "entry_points.txt") or "")
    sections = [section for section in ("console_scripts", "gui_scripts") if parser.has_section(section)]
    points = ["%s = %s" % pair for section in sections for pair in parser.items(section)]
    files = [PackageFile(path, each.size, each.executable) for path, each in sorted(members.items())]
    return Manifest(package.name, package.version, "wheel", {"info": info}, None, points, files)


def _place_wheel(layout: Layout, manifest: Manifest, package: "PlannedPackage", folder: str) -> None:
    info = manifest.facts["info"]
    dropped = {"%s/%s" % (info, name) for name in _NOT_PLACED}
    placed = [_placed_wheel(layout, manifest, file, folder) for file in manifest.files if file.path not in dropped]
    placed += _entry_point_scripts(manifest, layout, folder)
    placed.append(TargetFile("%s/%s/INSTALLER" % (layout.site, info), WRITE, folder, content=b"clusterfn\n"))
    for target in placed:
        layout.add(target)
    record = "%s/%s/RECORD" % (layout.site, info)
    layout.add(TargetFile(record, WRITE, folder, content=_wheel_record(placed, record, layout.site, folder, info)))


def _placed_wheel(layout: Layout, manifest: Manifest, file: PackageFile, folder: str) -> TargetFile:
    source = os.path.join(folder, "files", file.path)
    match = _WHEEL_DATA.match(file.path)
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


def _describe_standalone(package: "PlannedPackage", folder: str, members: "Mapping[str, Member]") -> Manifest:
    """Describe a Python of python-build-standalone, which names /install where its prefix belongs."""
    if "bin/python3" not in members:
        raise BuildFailed("%s is no Python: it has no bin/python3" % package.file, stage="unpack")
    files = []
    for path, member in sorted(members.items()):
        if _NOT_OF_PYTHON.match(path):
            continue
        named = _NAMES_PREFIX.match(path) and member.link is None
        mark, mode = (_STANDALONE_PREFIX, TEXT) if named else (None, None)
        files.append(PackageFile(path, member.size, member.executable, member.link, mark, mode))
    return Manifest(package.name, package.version, "standalone", {}, None, [], files)


def _place_standalone(layout: Layout, manifest: Manifest, package: "PlannedPackage", folder: str) -> None:
    for file in manifest.files:
        layout.add(_placed(file, file.path, folder))


def _placed(file: PackageFile, path: str, folder: str) -> TargetFile:
    """Return where a file goes that may be a link, or hold the prefix."""
    if file.link is not None:
        return TargetFile(path, SYMLINK, folder, content=os.fsencode(file.link))
    source = os.path.join(folder, "files", file.path)
    how = file.mode if file.placeholder and file.mode else LINK
    return TargetFile(path, how, folder, source, file.size, file.executable, file.placeholder or "")


def _is_python(path: str) -> bool:
    """Return whether a script begins with `#!python`, which is replaced by the environment's interpreter."""
    try:
        with open(path, "rb") as file:
            return file.read(8) == b"#!python"
    except FileNotFoundError:  # reported when it is linked
        return False


def _wheel_record(placed: "Iterable[TargetFile]", record: str, site: str, folder: str, info: str) -> bytes:
    """Write RECORD as pip does: paths relative to site-packages, hash and size of unchanged files."""
    rows = csv.reader(io.StringIO(_text(os.path.join(folder, "files", info), "RECORD") or ""))
    before = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    for target in sorted(placed):
        found = before.get(target.inside, ("", "")) if target.how == LINK else ("", "")
        if target.how == WRITE:
            digest = base64.urlsafe_b64encode(hashlib.sha256(target.content).digest()).decode().rstrip("=")
            found = ("sha256=" + digest, str(len(target.content)))
        lines.writerow((os.path.relpath(target.path, site),) + found)
    lines.writerow((os.path.relpath(record, site), "", ""))
    return out.getvalue().encode("utf-8", "surrogateescape")


def _entry_point_scripts(manifest: Manifest, layout: Layout, folder: str) -> "list[TargetFile]":
    found = []
    for line in manifest.entry_points:
        match = _ENTRY_POINT.match(line)
        if match is not None:
            name, module, attribute = match.group(1), match.group(2), match.group(3)
            text = _ENTRY_POINT_SCRIPT.format(module=module, attribute=attribute, first=attribute.split(".")[0])
            script = shebang(layout.python) + text.encode()
            found.append(TargetFile("bin/" + name, WRITE, folder, executable=True, content=script))
        elif ":" in line:
            raise BuildFailed("%r is no entry point" % line, stage="link")
    return found


def _json(folder: str, name: str) -> "Optional[dict[str, Any]]":
    text = _text(folder, name)
    return None if text is None else dict(native(json.loads(text)))


def _text(folder: str, name: str) -> "Optional[str]":
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape") as file:
            return str(native(file.read()))
    except FileNotFoundError:
        return None
