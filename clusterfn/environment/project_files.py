"""Read the files that uv and pip know as a `Specification`: pyproject.toml, uv.lock, pylock.toml and requirements.txt.

Only what decides something here is read: which Python, which extras, which build of PyTorch, which hashes, and what
makes a lock out of date. uv itself reads the same files when it resolves them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterfn.environment.local_packages import digest, digests, local_packages, source_tables, workspace_root
from clusterfn.environment.project import PYLOCK, PYPROJECT, UV_LOCK, ProjectFile, load_toml, normalize, split_parts
from clusterfn.environment.requirement_lines import RequirementLines
from clusterfn.environment.specification import Requirement, Specification
from clusterfn.errors import ConfigError, did_you_mean

_NAME = re.compile(r"\s*([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_OF_EXTRAS = re.compile(r"\s*([\w.-]+)\s*\[([^\]]*)\]")
_POETRY = "poetry and pdm write a file that pip reads: `poetry export > requirements.txt`"


def read_project(path: Path, parts: Sequence[str] = ()) -> Specification:
    """Read the specification in such a file, with the extras and groups that are wanted: "gpu", "group:dev".

    Raise ConfigError if it is not understood, or has no such extra or group.
    """
    if path.suffix.lower() != ".txt":
        return {PYPROJECT: _read_pyproject, UV_LOCK: _read_uv_lock}.get(path.name, _read_pylock)(path, parts)
    # This is pip's own file, read with the files that it names.
    lines = RequirementLines(path.parent)
    lines.read_file(path)
    if lines.is_empty:
        raise ConfigError(f"{path} lists no packages", hint="write one per line, such as numpy>=2")
    return lines.added_to(_specification(lines.project(path), (), lines.wishes()))


def _specification(project: ProjectFile, pip: Sequence[Requirement], wish: Mapping[str, Any]) -> Specification:
    parts = [*project.extras, *(f"group:{group}" for group in project.groups)]
    content = json.dumps({"project": project.kind, "parts": parts, **wish}, sort_keys=True)
    title = f"{project.path.name}[{','.join(parts)}]" if parts else project.path.name
    return Specification(title, pip=tuple(pip), file=project.path, wish=content, wheels=project)


def _read_pyproject(path: Path, parts: Sequence[str]) -> Specification:
    tree = load_toml(path)
    table, tool = _table(tree, "project", path), _table(tree, "tool", path)
    if "project" not in tree:
        hint = _POETRY if "poetry" in tool else "add it, or write a requirements.txt"
        raise ConfigError(f"{path} has no [project] table", hint=hint)
    extras, groups = split_parts(parts)
    optional = {normalize(name): value for name, value in _table(table, "optional-dependencies", path).items()}
    known = {normalize(name): value for name, value in _table(tree, "dependency-groups", path).items()}
    dynamic = _lines(table, "dynamic", path)
    if "optional-dependencies" not in dynamic:
        _refuse_unknown("extra", extras, optional, path)
    own = normalize(str(table.get("name", "")))
    _refuse_unknown("group", groups, known, path)
    named = [*_lines(table, "dependencies", path), *(line for each in groups for line in _of_group(each, known, path))]
    direct = list(_with_extras(named, extras, optional, own, path))
    uv, root = _table(tool, "uv", path), workspace_root(path.parent)
    # uv reads the settings of the workspace and those of its member.
    above = load_toml(root / PYPROJECT)["tool"]["uv"] if root != path.parent else {}
    given = {**_table(above, "sources", root / PYPROJECT), **_table(uv, "sources", path)}
    sources = list(source_tables({normalize(name): value for name, value in given.items()}))
    listed = [each for settings in (uv, above) for each in settings.get("index") or () if isinstance(each, dict)]
    indexes = [(str(each.get("name", "")), str(each["url"])) for each in listed if "url" in each]

    # The addresses of packages and repositories have no name, as that of an index has one.
    indexes += [("", str(each[key])) for _, each in sources for key in ("git", "url") if key in each]
    project = ProjectFile(
        PYPROJECT, path, extras, groups, str(table.get("requires-python", "")), indexes=tuple(indexes),
        is_dynamic=bool({"dependencies", "optional-dependencies"} & {*dynamic}),
    )  # fmt: skip
    local = local_packages(path.parent, uv)
    wish = {"direct": sorted(direct), "python": project.requires_python, "uv": uv, "local": local}
    if above:
        wish["workspace"] = {"uv": above, "local": local_packages(root, {"sources": above.get("sources", {})})}
    if dynamic:
        wish["built"] = {**digests(path.parent, tree), "tool": tool.get("setuptools", {})}
    names = [(_NAME.match(line), line.strip()) for line in direct]
    wanted = [Requirement(normalize(name[1]) if name else "", line) for name, line in names]
    # TOML has dates, which JSON has not.
    spec = _specification(project, wanted, json.loads(json.dumps(wish, default=str)))
    of_torch = [
        url for package, each in sources
        if package == "torch" and "index" in each and each.get("extra", "") in ("", *extras)
        for name, url in indexes if name == each["index"]
    ]  # fmt: skip
    return replace(spec, indexes=tuple(of_torch))


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


def _with_extras(
    named: Sequence[str], extras: Sequence[str], optional: Mapping[str, Any], own: str, path: Path
) -> Iterator[str]:
    """Yield lines and those of extras, also of the extras that a line names by the project's own name: `mine[gpu]`."""
    lines, seen = [*named, *(line for each in extras for line in _lines(optional, each, path))], set(extras)
    for line in lines:
        yield line
        of_own = _OF_EXTRAS.match(line)
        if of_own and normalize(of_own[1]) == own:
            more = {normalize(each.strip()) for each in of_own[2].split(",")} & optional.keys() - seen
            lines += [found for each in sorted(more) for found in _lines(optional, each, path)]
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
    for name in (each for each in names if each not in known):
        has = ", ".join(sorted(known)) or f"no {kind}s"
        raise ConfigError(f"{path.name} has no {kind} {name!r}{did_you_mean(name, known)}", hint=f"it has {has}")


def _read_uv_lock(path: Path, parts: Sequence[str]) -> Specification:
    beside = path.with_name(PYPROJECT)
    if not beside.is_file():
        raise ConfigError(f"{path} has no {PYPROJECT} beside it", hint=f"copy it there, or export a {PYLOCK}")
    spec, data = _read_pyproject(beside, parts), path.read_bytes()
    assert spec.project is not None
    # To parse 10 000 lines of TOML takes seconds, and one value is needed.
    python = re.search(rb'^requires-python = "([^"]*)"', data, re.MULTILINE)
    wanted = python[1].decode() if python else spec.project.requires_python
    locked = replace(spec.project, kind=UV_LOCK, path=path, requires_python=wanted)
    return _specification(locked, spec.pip, {"lock": digest(data), "pyproject": spec.wish})


def _read_pylock(path: Path, parts: Sequence[str]) -> Specification:
    tree = load_toml(path)
    packages = tree.get("packages")
    if not isinstance(packages, list) or not all(isinstance(each, dict) and "name" in each for each in packages):
        hint = "`uv export --format pylock.toml -o pylock.toml` writes it"
        raise ConfigError(f"{path} has no packages of a pylock.toml", hint=hint)
    extras, groups = split_parts(parts)
    for kind, names, key in (("extra", extras, "extras"), ("group", groups, "dependency-groups")):
        _refuse_unknown(kind, names, dict.fromkeys(map(normalize, _lines(tree, key, path))), path)
    pip = [Requirement(normalize(str(each["name"])), str(each["name"])) for each in packages]
    project = ProjectFile(PYLOCK, path, extras, groups, requires_python=str(tree.get("requires-python", "")))
    return _specification(project, pip, {"lock": digest(path.read_bytes())})
