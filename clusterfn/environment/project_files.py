"""Read the files that uv and pip know as a `Specification`: pyproject.toml, uv.lock, pylock.toml and requirements.txt.

Only what decides something here is read: which Python, which extras, which build of PyTorch, which hashes, and what
makes a lock out of date. uv itself reads the same files when it resolves them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterfn.bridge.builder.fetch import masked
from clusterfn.config.text_file import read_text
from clusterfn.environment.project import (
    PYLOCK,
    PYPROJECT,
    REQUIREMENTS,
    UV_LOCK,
    ProjectFile,
    normalize,
    refuse_parts,
    split_parts,
)
from clusterfn.environment.solve import condarc
from clusterfn.environment.specification import USUAL_CHANNEL, PipLines, Requirement, Specification
from clusterfn.errors import ConfigError, did_you_mean

_NAME = re.compile(r"\s*([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_OF_EXTRAS = re.compile(r"\s*([\w.-]+)\s*\[([^\]]*)\]")
_EXTRAS = re.compile(r"\[([^\]]*)\]$")
_REPOSITORY = re.compile(r"@\s*(?:git|hg|svn|bzr)\+")
_HASH = re.compile(r"\s--hash[\s=]+(\w+):([0-9a-fA-F]+)")
_OTHER_FILE = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s+|=)(\S.*)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=)(\S.*)")
# uv understands these, and they say nothing about which wheels the lock must have.
_LEFT_TO_UV = re.compile(r"--(?:only-binary|prefer-binary|pre|require-hashes|no-index|trusted-host)\b")
# Of a local package's [project]. A new version of it changes nothing of what it depends on.
_WANTS = ("name", "requires-python", "dependencies", "optional-dependencies", "dynamic")
_POETRY = "poetry and pdm write a file that pip reads: `poetry export > requirements.txt`"


def read_project(path: Path, parts: Sequence[str] = ()) -> Specification:
    """Read the specification in such a file.

    Args:
        parts: The extras and groups that are wanted: "gpu", "group:dev".

    Raises:
        ConfigError: It is not understood, or has no such extra or group.
    """
    if path.suffix.lower() == ".txt":
        return _read_requirements(path, parts)
    if path.name == PYPROJECT:
        return _read_pyproject(path, parts)
    if path.name == UV_LOCK:
        return _read_uv_lock(path, parts)
    return _read_pylock(path, parts)


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, once until it changes: every call of a function reads its environment's files.

    Raises:
        ConfigError: It cannot be read, or is no TOML; with its line.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="correct its name or its mode") from error
    return _parsed(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _parsed(path: Path, mtime_ns: int, size: int) -> dict[str, Any]:
    try:
        toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:  # Python 3.9 and 3.10 have no reader of their own
        raise ConfigError(
            f"reading {path.name} needs tomli on Python older than 3.11", hint="pip install 'tomli>=2'"
        ) from error
    try:
        return dict(toml.loads(read_text(path, only="utf-8")))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="correct that line") from error


def _specification(project: ProjectFile, pip: Sequence[Requirement], wish: Mapping[str, Any]) -> Specification:
    """Make the specification; its `wish` is a hash of what decides about the lock."""
    parts = [*project.extras, *(f"group:{group}" for group in project.groups)]
    channels = tuple(condarc.channels(condarc.settings())) or (USUAL_CHANNEL,)
    # Without the channels: they are this machine's, and a colleague's .condarc must not make the lock out of date.
    content = json.dumps({"project": project.kind, "parts": parts, **wish}, sort_keys=True)
    title = f"{project.path.name}[{','.join(parts)}]" if parts else project.path.name
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Specification(title, channels, pip=tuple(pip), file=project.path, wish=digest, project=project)


def _read_pyproject(path: Path, parts: Sequence[str]) -> Specification:
    tree = load_toml(path)
    table = _table(tree, "project", path)
    if "project" not in tree:
        hint = _POETRY if "poetry" in _table(tree, "tool", path) else "add it, or write a requirements.txt"
        raise ConfigError(f"{path} has no [project] table", hint=hint)
    extras, groups = split_parts(parts)
    optional = {normalize(name): value for name, value in _table(table, "optional-dependencies", path).items()}
    known = {normalize(name): value for name, value in _table(tree, "dependency-groups", path).items()}
    if "optional-dependencies" not in _lines(table, "dynamic", path):
        _refuse_unknown("extra", extras, optional, path)
    _refuse_unknown("group", groups, known, path)
    own = normalize(str(table.get("name", "")))
    direct = [*_lines(table, "dependencies", path), *_of_extras(extras, optional, own, path)]
    direct += [line for each in groups for line in _of_group(each, known, path)]
    uv = _table(_table(tree, "tool", path), "uv", path)
    root = workspace_root(path.parent)
    above = load_toml(root / PYPROJECT)["tool"]["uv"] if root != path.parent else {}  # uv reads both
    given = {**_table(above, "sources", root / PYPROJECT), **_table(uv, "sources", path)}
    sources = {normalize(name): value for name, value in given.items()}
    wanted = [_requirement(line, sources, path) for line in direct]
    local, dynamic = _local(path.parent, uv), _lines(table, "dynamic", path)
    shared = _local(root, {"sources": above.get("sources", {})})
    names = _names(local) | _names(shared)
    is_dynamic = bool({"dependencies", "optional-dependencies"} & set(dynamic))
    project = ProjectFile(
        PYPROJECT, path, extras, groups, str(table.get("requires-python", "")),
        indexes=(*_indexes(uv), *_indexes(above)),
        local=tuple(sorted({*names, normalize(str(table.get("name", "")))} if is_dynamic else names)),
        is_dynamic=is_dynamic,
    )  # fmt: skip
    wish = {"direct": sorted(direct), "python": project.requires_python, "uv": uv, "local": local}
    if above:
        wish["workspace"] = {"uv": above, "local": shared}
    if dynamic:
        wish["built"] = {**_digests(path.parent, tree), "tool": tree.get("tool", {}).get("setuptools", {})}
    spec = _specification(project, wanted, json.loads(json.dumps(wish, default=str)))  # TOML has dates
    return replace(spec, indexes=tuple(_indexes_of_torch(sources, project)))


def _table(tree: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = tree.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name}: {key} is not a table", hint="correct it; uv check shows such errors too")
    return value


def _lines(tree: Mapping[str, Any], key: str, path: Path) -> list[str]:
    value = tree.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{path.name}: {key} is not a list of strings", hint=f'write {key} = ["numpy>=2"]')
    return list(value)


def _of_extras(extras: Sequence[str], optional: Mapping[str, Any], own: str, path: Path) -> Iterator[str]:
    """Yield the dependencies of extras, and of those that they name by the project's own name: `mine[gpu]`."""
    waiting, seen = list(extras), set(extras)
    while waiting:
        for line in _lines(optional, waiting.pop(0), path):
            yield line
            of_own = _OF_EXTRAS.match(line)
            if of_own and normalize(of_own[1]) == own:
                more = {normalize(each) for each in of_own[2].split(",")} & optional.keys() - seen
                waiting += sorted(more)
                seen |= more


def _of_group(name: str, known: Mapping[str, Any], path: Path, within: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the dependencies of a group, and of the groups that it includes."""
    _refuse_unknown("group", [name], known, path)
    if name in within:
        raise ConfigError(f"{path.name}: the group {name} includes itself", hint="remove one include-group")
    for each in known[name]:
        if isinstance(each, dict):
            yield from _of_group(normalize(str(each.get("include-group", ""))), known, path, (*within, name))
        else:
            yield str(each)


def _refuse_unknown(kind: str, names: Sequence[str], known: Mapping[str, Any], path: Path) -> None:
    for name in names:
        if name not in known:
            has = ", ".join(sorted(known)) or f"no {kind}s"
            raise ConfigError(f"{path.name} has no {kind} {name!r}{did_you_mean(name, known)}", hint=f"it has {has}")


def _requirement(line: str, sources: Mapping[str, Any], path: Path) -> Requirement:
    """Return what is wanted, by its name.

    Raises:
        ConfigError: It comes from a repository, which no lock can hold.
    """
    found = _NAME.match(line)
    name = normalize(found[1]) if found else ""
    given = sources.get(name)
    several = given if isinstance(given, list) else [given] if given else []
    where = next((str(each["git"]) for each in several if isinstance(each, dict) and "git" in each), "")
    if where or _REPOSITORY.search(line):
        raise ConfigError(
            f"{path.name}: {name} comes from a repository ({masked(where or line)}), which cannot be locked to a wheel",
            hint=f"clone it and name its folder in [tool.uv.sources] ({name} = {{path = …, editable = true}}), "
            "or name a released version",
        )
    return Requirement(name, line.strip(), path.name)


def _indexes(uv: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in uv.get("index") or ():
        if isinstance(each, dict) and "url" in each:
            yield str(each.get("name", "")), str(each["url"])


def _indexes_of_torch(sources: Mapping[str, Any], project: ProjectFile) -> Iterator[str]:
    """Yield the addresses of the indexes from which the project takes PyTorch, if it names some."""
    given = sources.get("torch")
    for each in given if isinstance(given, list) else [given] if given else []:
        if isinstance(each, dict) and "index" in each and each.get("extra", "") in ("", *project.extras):
            yield from (url for name, url in project.indexes if name == each["index"])


def _local(folder: Path, uv: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the project's local packages want, by their folder, and those of theirs: the lock depends on it."""
    found: dict[str, Any] = {}
    seen: set[Path] = set()
    waiting = [(folder, uv)]
    while waiting:
        for place in _folders(*waiting.pop()):
            if place.resolve() in seen:
                continue
            seen.add(place.resolve())
            if place.is_file():
                found[_relative(place, folder)] = {"project": {}, "uv": {}, "built": _digest_of_archive(place)}
            if not place.is_dir():
                continue
            file = place / PYPROJECT
            tree = load_toml(file) if file.is_file() else {}
            theirs, project = tree.get("tool", {}).get("uv", {}), tree.get("project", {})
            wants = {key: project[key] for key in _WANTS if key in project}
            found[_relative(place, folder)] = {"project": wants, "uv": theirs, "built": _digests(place, tree)}
            waiting.append((place, theirs))
    return found


def _names(local: Mapping[str, Any]) -> set[str]:
    """Return the names of local packages that say one."""
    return {normalize(str(each["project"]["name"])) for each in local.values() if each["project"].get("name")}


def workspace_root(folder: Path) -> Path:
    """Return the folder whose [tool.uv] counts for a project: that of its workspace if it is a member, else its own.

    Raises:
        ConfigError: A file above it is no TOML.
    """
    here = folder.resolve()
    for root in here.parents if not _workspace(here) else ():
        workspace = _workspace(root)
        if workspace:
            inside = here in _matches(root, workspace, "members") and here not in _matches(root, workspace, "exclude")
            return root if inside else folder
    return folder


def _workspace(folder: Path) -> dict[str, Any]:
    file = folder / PYPROJECT
    return load_toml(file).get("tool", {}).get("uv", {}).get("workspace", {}) if file.is_file() else {}


def _matches(root: Path, workspace: Mapping[str, Any], key: str) -> list[Path]:
    """Return the folders of a workspace that one of its lists of patterns names."""
    return sorted({place.resolve() for pattern in workspace.get(key, []) for place in root.glob(str(pattern))})


def _folders(folder: Path, uv: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the local packages that a project names, folders and archives, and the members of its workspace."""
    of_workspace = False
    for given in (uv.get("sources") or {}).values():
        for each in given if isinstance(given, list) else [given]:
            if isinstance(each, dict) and "path" in each:
                yield folder / Path(str(each["path"])).expanduser()
            of_workspace |= isinstance(each, dict) and bool(each.get("workspace"))
    for root in [folder, *folder.resolve().parents] if of_workspace or "workspace" in uv else []:
        workspace = _workspace(root)
        if workspace:
            members = {place for pattern in workspace.get("members", []) for place in root.glob(str(pattern))}
            yield from sorted(place for place in members if place.is_dir())
            return


def _digests(folder: Path, pyproject: Mapping[str, Any]) -> dict[str, str]:
    """Return hashes of the files in which a build backend may find dependencies."""
    names = ["setup.py", "setup.cfg", REQUIREMENTS]
    dynamic = pyproject.get("tool", {}).get("setuptools", {}).get("dynamic", {})
    tables = [dynamic.get("dependencies", {}), *dynamic.get("optional-dependencies", {}).values()]
    for given in (table.get("file", []) for table in tables):
        names += [given] if isinstance(given, str) else given
    return {name: _digest((folder / name).read_bytes()) for name in names if (folder / name).is_file()}


def _digest(data: bytes) -> str:
    """Return a hash of a text that git may check out with other line endings."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()


def _digest_of_archive(path: Path) -> str:
    """Return a hash of a wheel, which may be built again with the same version; "" if it is missing: uv says so."""
    try:
        now = path.stat()
        return _digest_at(path, now.st_mtime_ns, now.st_size)
    except OSError:
        return ""


@functools.lru_cache(maxsize=64)
def _digest_at(path: Path, mtime_ns: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_uv_lock(path: Path, parts: Sequence[str]) -> Specification:
    beside = path.with_name(PYPROJECT)
    if not beside.is_file():
        raise ConfigError(f"{path} has no {PYPROJECT} beside it", hint=f"copy it there, or export a {PYLOCK}")
    project = _read_pyproject(beside, parts)
    if project.project is None:
        raise AssertionError("a pyproject.toml is a project")
    data = path.read_bytes()
    python = re.search(rb'^requires-python = "([^"]*)"', data, re.MULTILINE)  # to parse 10 000 lines takes seconds
    wanted = python[1].decode() if python else project.project.requires_python
    locked = replace(project.project, kind=UV_LOCK, path=path, requires_python=wanted)
    wish = {"lock": _digest(data), "pyproject": project.wish}
    return _specification(locked, project.pip, wish)


def _read_pylock(path: Path, parts: Sequence[str]) -> Specification:
    refuse_parts(path, parts)
    tree = load_toml(path)
    packages = tree.get("packages")
    if not isinstance(packages, list) or not all(isinstance(each, dict) and "name" in each for each in packages):
        raise ConfigError(
            f"{path} has no packages of a pylock.toml", hint="`uv export --format pylock.toml -o pylock.toml` writes it"
        )
    pip = [Requirement(normalize(str(each["name"])), str(each["name"]), path.name) for each in packages]
    project = ProjectFile(PYLOCK, path, requires_python=str(tree.get("requires-python", "")))
    return _specification(project, pip, {"lock": _digest(path.read_bytes())})


def _read_requirements(path: Path, parts: Sequence[str]) -> Specification:
    """Read pip's own file, with the files that it names."""
    refuse_parts(path, parts)
    pip, hashes = PipLines(path.parent), dict[str, set[str]]()
    lines = sorted(_requirement_lines(path, path, pip, hashes))
    local = [_EXTRAS.sub("", each[3:]) for each in lines if each.startswith("-e ")]
    sources = {str(number): {"path": place} for number, place in enumerate(local)}
    wish: dict[str, Any] = {"lines": lines, "local": _local(path.parent, {"sources": sources})}
    if not pip.wanted and not local:
        raise ConfigError(f"{path} lists no packages", hint="write one per line, such as numpy>=2")
    frozen = {name: frozenset(allowed) for name, allowed in hashes.items()}
    names = tuple(sorted(_names(wish["local"])))
    return pip.added_to(_specification(ProjectFile(REQUIREMENTS, path, hashes=frozen, local=names), (), wish))


def _requirement_lines(
    path: Path, first: Path, pip: PipLines, hashes: dict[str, set[str]], seen: tuple[Path, ...] = ()
) -> Iterator[str]:
    """Yield each line of a file and of those that it names, and note what they mean.

    Raises:
        ConfigError: A line cannot be locked; with its number.
    """
    if path in seen:
        return
    for number, line in _logical_lines(read_text(path)):
        place = f"{path.name}:{number}"
        other, editable = _OTHER_FILE.fullmatch(line), _EDITABLE.fullmatch(line)
        if other:
            below = path.parent / Path(other[1].strip()).expanduser()
            if not below.is_file():
                raise ConfigError(f'{place}: "{line}" names a file that is not here', hint=f"is {below} its path?")
            # A constraint asks for no package: what it says of PyTorch is left to uv.
            lines = PipLines(below.parent) if line.startswith(("-c", "--c")) else pip
            yield from _requirement_lines(below, first, lines, hashes, (*seen, path))
        elif editable and not re.match(r"(?:git|hg|svn|bzr)\+", editable[1]):
            yield f"-e {_relative(path.parent / editable[1].strip(), first.parent)}"
        elif line.startswith(".") and not line.endswith((".whl", ".gz", ".zip")):
            yield f"-e {_relative(path.parent / line, first.parent)}"
        elif line.startswith("."):
            yield f"{line} {_digest_of_archive(path.parent / line.partition(' ')[0])}"
        elif _LEFT_TO_UV.match(line):
            yield line
        else:
            bare = _HASH.sub("", f" {line}").strip()
            pip.read(editable[1] if editable else bare, place)
            for kind, digest in _HASH.findall(f" {line}"):
                name = pip.wanted[-1].name
                hashes.setdefault(name, set()).update([digest.lower()] if kind == "sha256" else [])
            yield line


def _relative(path: Path, folder: Path) -> str:
    bare = _EXTRAS.sub("", str(path))  # -e .[train]
    extras = str(path)[len(bare) :]
    try:
        return Path(os.path.relpath(bare, folder)).as_posix() + extras
    except ValueError:  # on Windows, another drive
        return Path(bare).absolute().as_posix() + extras


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without comments, continued lines joined."""
    begun = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        begun += bare.rstrip("\\")
        if not bare.endswith("\\"):
            if begun.strip():
                yield number, begun.strip()
            begun = ""
