"""Read what a conda package says about its files (paths.json, has_prefix, noarch, entry points), and place them."""

import json
import os
import shlex

from ..supervisor.text import native, portable
from .errors import BuildFailed
from .fetch import masked
from .layouts import BINARY, LINK, SYMLINK, TEXT, WRITE, Manifest, PackageFile, TargetFile
from .prefix import entry_point_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Optional

    from .archives import Member
    from .layouts import Layout
    from .plan import PlannedPackage

_OLD_PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"  # of has_prefix lines that name none


def describe(package: "PlannedPackage", folder: str, members: "Mapping[str, Member]") -> Manifest:
    """Return the manifest of an unpacked conda package."""
    index = _json(folder, "info/index.json")
    if index is None:
        raise BuildFailed("%s is no conda package: it has no info/index.json" % package.file, stage="unpack")
    link = _json(folder, "info/link.json") or {}
    prefixes = _prefixes(folder)
    files = [_file(members, path, prefixes.get(path)) for path in _paths(folder, members)]
    noarch = link.get("noarch") or {}
    return Manifest(
        str(index.get("name", package.name)), str(index.get("version", package.version)), "conda", index,
        noarch.get("type") or _noarch(index.get("noarch")), list(noarch.get("entry_points") or ()), files,
    )  # fmt: skip


def _paths(folder: str, members: "Mapping[str, Member]") -> "list[str]":
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
    """Map each path to its placeholder and mode."""
    described = _json(folder, "info/paths.json")
    if described is not None:
        return {
            os.path.normpath(each["_path"]): (each["prefix_placeholder"], each.get("file_mode") or TEXT)
            for each in described["paths"]
            if each.get("prefix_placeholder")
        }
    lines = (_text(folder, "info/has_prefix") or "").split("\n")
    return dict(_old_prefix(line) for line in lines if line.strip())


def _old_prefix(line: str) -> "tuple[str, tuple[str, str]]":
    parts = shlex.split(line)
    if len(parts) == 3 and parts[1] in (TEXT, BINARY):
        return os.path.normpath(parts[2]), (parts[0], parts[1])
    return os.path.normpath(line.strip()), (_OLD_PLACEHOLDER, TEXT)


def _file(members: "Mapping[str, Member]", path: str, prefix: "Optional[tuple[str, str]]") -> PackageFile:
    member = members.get(path)
    if member is None:
        raise BuildFailed("it lists %s and does not hold it" % path, stage="unpack")
    placeholder, mode = prefix or (None, None)
    return PackageFile(path, member.size, member.executable, member.link, placeholder, mode)


def _noarch(word: "Any") -> "Optional[str]":
    return "generic" if word is True else str(word) if word else None


def place(layout: "Layout", manifest: Manifest, package: "PlannedPackage", folder: str) -> None:
    """Add the package's files to an environment, with conda's record of it."""
    python = manifest.noarch == "python"
    placed = [
        _placed(file, folder, _noarch_path(file.path, layout) if python else file.path) for file in manifest.files
    ]
    if python:
        found = [entry_point_script(line, layout.python) for line in manifest.entry_points]
        placed += [
            TargetFile("bin/" + each[0], WRITE, folder, executable=True, content=each[1]) for each in found if each
        ]
    for target in placed:
        layout.add(target)
    layout.add(_record(manifest, package, folder, [target.path for target in placed]))


def _placed(file: PackageFile, folder: str, path: str) -> TargetFile:
    if file.link is not None:
        return TargetFile(path, SYMLINK, folder, content=os.fsencode(file.link))
    source = os.path.join(folder, "files", file.path)
    how = file.mode if file.placeholder and file.mode else LINK
    return TargetFile(path, how, folder, source, file.size, file.executable, file.placeholder or "")


def _noarch_path(path: str, layout: "Layout") -> str:
    top, slash, rest = path.partition("/")
    if slash and top == "site-packages":
        return layout.site + "/" + rest
    return "bin/" + rest if slash and top == "python-scripts" else path


def _record(manifest: Manifest, package: "PlannedPackage", folder: str, paths: "Iterable[str]") -> TargetFile:
    """Write conda-meta/….json, by which conda and pip know what is installed."""
    url = masked(package.url)
    record = dict(
        manifest.facts, fn=package.file, url=url, channel=url.rsplit("/", 2)[0], sha256=package.sha256,
        files=sorted(paths), link={"source": folder, "type": 1}, requested_spec="",
    )  # fmt: skip
    data = json.dumps(portable(record), indent=1).encode()
    name = "%s-%s-%s.json" % (manifest.name, manifest.version, manifest.facts.get("build", package.build))
    return TargetFile("conda-meta/" + name.replace("/", "_"), WRITE, folder, content=data)


def _json(folder: str, name: str) -> "Optional[dict[str, Any]]":
    text = _text(folder, name)
    return None if text is None else dict(native(json.loads(text)))


def _text(folder: str, name: str) -> "Optional[str]":
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape") as file:
            return str(native(file.read()))
    except FileNotFoundError:
        return None
