"""The formats of packages: what an unpacked one says of itself, and where its files go in an environment.

A conda package describes its files in paths.json, with noarch and entry points; a wheel by the names of its
folders. Both leave a record of what is installed, by which conda and pip know it.
"""

import configparser
import contextlib
import csv
import io
import json
import os
import re
from typing import Any, Mapping, Optional

from ..layout import PACKAGE_FILES, package_dir
from ..supervisor.text import native, portable
from .link import (
    CACHE,
    LINK,
    SCRIPT,
    SYMLINK,
    TEXT,
    WRITE,
    Layout,
    Manifest,
    PackageFile,
    TargetFile,
    read_manifest,
    shebang,
)
from .plan import TAR_GZ, WHEEL, BuildPlan, PlannedPackage, masked
from .progress import BuildFailed

_HISTORY = b"==> made by clusterfn from a lock <==\n"
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


def describe_package(package: "PlannedPackage", folder: str, members: "Mapping[str, PackageFile]") -> Manifest:
    """Return the manifest of an unpacked package."""
    describe = {WHEEL: _describe_wheel, TAR_GZ: _describe_standalone}.get(package.kind, _describe_conda)
    return describe(package, folder, members)


def layout_of_plan(plan: "BuildPlan", prefix: str) -> Layout:
    """Compute where every file of an environment comes from; raise PackageDamaged if a package has no manifest."""
    folders = [package_dir(plan.root, package.sha256) for package in plan.packages]
    manifests = list(map(read_manifest, folders))
    python = next((manifest for manifest in manifests if manifest.kind != "wheel" and manifest.name == "python"), None)
    if plan.base is None and python is None:
        raise BuildFailed("the lock has no python", stage="plan", hint="name python in the environment's specification")
    layout = Layout(prefix, plan.python, python.facts.get("python_site_packages_path") if python else None)
    if plan.base is not None:
        # It is laid out as by `venv`: a link to the host's interpreter, and pyvenv.cfg, which isolates it. Neither
        # `venv` nor `ensurepip` is used: Debian has packages of their own for them.
        path, version = plan.base["path"], plan.base["version"]
        values = "home = %s\ninclude-system-site-packages = false\nversion = %s\nexecutable = %s\n"
        config = os.fsencode(values % (os.path.dirname(path), version, path))
        layout.add(TargetFile("pyvenv.cfg", WRITE, "", content=config))
        layout.add(TargetFile("bin/python", SYMLINK, "", content=os.fsencode(path)))
        for name in ("python3", "python%d.%d" % layout.version):
            layout.add(TargetFile("bin/" + name, SYMLINK, "", content=b"python"))
    for package, folder, manifest in zip(plan.packages, folders, manifests):
        place = _place_wheel if manifest.kind == "wheel" else _place_conda
        place(layout, manifest, package, folder)
    if python is not None and python.kind == "conda":
        layout.add(TargetFile("conda-meta/history", WRITE, folders[0], content=_HISTORY))
    return layout


def _describe_conda(package: "PlannedPackage", folder: str, members: "Mapping[str, PackageFile]") -> Manifest:
    index = _json(folder, "info/index.json")
    if index is None:
        raise BuildFailed("%s is no conda package: it has no info/index.json" % package.file, stage="unpack")
    described = _json(folder, "info/paths.json")
    link = _json(folder, "info/link.json") or {}
    files = []
    if described is None:
        raise BuildFailed("%s is of a conda before 2017: it has no info/paths.json" % package.file, stage="unpack")
    for entry in sorted(described["paths"], key=lambda entry: str(entry["_path"])):
        path = os.path.normpath(entry["_path"])
        member = members.get(path)
        if member is not None:
            placeholder = entry.get("prefix_placeholder")
            mode = (entry.get("file_mode") or TEXT) if placeholder else None
            files.append(member._replace(placeholder=placeholder, mode=mode))
        elif entry.get("path_type") != "directory" and CACHE not in path:
            raise BuildFailed("it lists %s and does not hold it" % path, stage="unpack")
    linked = link.get("noarch") or {}
    noarch = "python" if (linked.get("type") or index.get("noarch")) == "python" else None
    name, version = str(index.get("name", package.name)), str(index.get("version", package.version))
    return Manifest(name, version, "conda", index, noarch, list(linked.get("entry_points") or ()), files)


def _place_conda(layout: Layout, manifest: Manifest, package: "PlannedPackage", folder: str) -> None:
    """Place a package of conda, or a Python of python-build-standalone."""
    python = manifest.noarch == "python"
    placed = []
    places = {"site-packages": layout.site + "/", "python-scripts": "bin/"}
    for file in manifest.files:
        top, slash, rest = file.path.partition("/")
        is_moved = python and slash and top in places
        placed.append(_placed(file, places[top] + rest if is_moved else file.path, folder))
    placed += _entry_point_scripts(manifest, layout, folder) if python else []
    if manifest.kind == "conda":
        # By conda-meta/….json, conda and pip know what is installed.
        url = masked(package.url)
        record = dict(
            manifest.facts,
            fn=package.file,
            url=url,
            channel=url.rsplit("/", 2)[0],
            sha256=package.sha256,
            files=sorted(target.path for target in placed),
            link={"source": folder, "type": 1},
            requested_spec="",
        )
        name = "%s-%s-%s.json" % (manifest.name, manifest.version, manifest.facts.get("build", package.build))
        data = json.dumps(portable(record), indent=1).encode()
        placed.append(TargetFile("conda-meta/" + name.replace("/", "_"), WRITE, folder, content=data))
    for target in placed:
        layout.add(target)


def _describe_wheel(package: "PlannedPackage", folder: str, members: "Mapping[str, PackageFile]") -> Manifest:
    found = [os.path.dirname(path) for path in members if _WHEEL_INFO.match(path)]
    if len(found) != 1:
        raise BuildFailed("%s is no wheel: it has %d dist-info folders" % (package.file, len(found)), stage="unpack")
    info = found[0]
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(_text(os.path.join(folder, info), "entry_points.txt") or "")
    sections = [section for section in ("console_scripts", "gui_scripts") if parser.has_section(section)]
    points = ["%s = %s" % pair for section in sections for pair in parser.items(section)]
    return Manifest(package.name, package.version, "wheel", {"info": info}, None, points, sorted(members.values()))


def _place_wheel(layout: Layout, manifest: Manifest, package: "PlannedPackage", folder: str) -> None:
    info = manifest.facts["info"]
    placed = []
    dropped = {"%s/%s" % (info, name) for name in _NOT_PLACED}
    headers = "include/python%d.%d/%s/" % (layout.version + (manifest.name,))
    places = {"scripts": "bin/", "headers": headers, "data": ""}
    for file in manifest.files:
        if file.path in dropped:
            continue
        match = _WHEEL_DATA.match(file.path)
        kind, rest = match.groups() if match else ("purelib", file.path)
        target = _placed(file, places.get(kind, layout.site + "/") + rest, folder)
        if kind == "scripts":
            # The linker reports a missing file.
            with contextlib.suppress(FileNotFoundError), open(target.source, "rb") as script:
                # `#!python` is replaced by the environment's interpreter.
                target = target._replace(how=SCRIPT) if script.read(8) == b"#!python" else target
        placed.append(target)
    placed += _entry_point_scripts(manifest, layout, folder)
    placed.append(TargetFile("%s/%s/INSTALLER" % (layout.site, info), WRITE, folder, content=b"clusterfn\n"))
    # RECORD has paths relative to site-packages, as pip writes them; and no hashes, which may be left out.
    record = "%s/%s/RECORD" % (layout.site, info)
    out = io.StringIO()
    paths = sorted([record] + [target.path for target in placed])
    csv.writer(out, lineterminator="\n").writerows((os.path.relpath(path, layout.site), "", "") for path in paths)
    content = out.getvalue().encode("utf-8", "surrogateescape")
    for target in placed + [TargetFile(record, WRITE, folder, content=content)]:
        layout.add(target)


def _describe_standalone(package: "PlannedPackage", folder: str, members: "Mapping[str, PackageFile]") -> Manifest:
    """Describe a Python of python-build-standalone, which names /install where its prefix belongs."""
    if "bin/python3" not in members:
        raise BuildFailed("%s is no Python: it has no bin/python3" % package.file, stage="unpack")
    files = []
    for path, member in sorted(members.items()):
        if _NOT_OF_PYTHON.match(path):
            continue
        named = _NAMES_PREFIX.match(path) and member.link is None
        files.append(member._replace(placeholder=_STANDALONE_PREFIX, mode=TEXT) if named else member)
    return Manifest(package.name, package.version, "standalone", {}, None, [], files)


def _placed(file: PackageFile, path: str, folder: str) -> TargetFile:
    """Return where a file goes that may be a link, or hold the prefix."""
    if file.link is not None:
        return TargetFile(path, SYMLINK, folder, content=os.fsencode(file.link))
    source = os.path.join(folder, PACKAGE_FILES, file.path)
    how = file.mode if file.placeholder and file.mode else LINK
    return TargetFile(path, how, folder, source, file.size, file.executable, file.placeholder or "")


def _entry_point_scripts(manifest: Manifest, layout: Layout, folder: str) -> "list[TargetFile]":
    found = []
    for line in manifest.entry_points:
        match = _ENTRY_POINT.match(line)
        if match is not None:
            name, module, attribute, _ = match.groups()
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
