"""Read the files that describe an environment as a `Specification`: environment.yml, and those that uv and pip know.

Only what decides something here is read of a pyproject.toml, uv.lock, pylock.toml or requirements.txt: which Python,
which extras, which build of PyTorch, which hashes, and what makes a lock out of date. uv itself reads the same files
when it resolves them. conda's exports of a whole environment are recognised: their builds fit one platform only, so
they are removed, and the user is informed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterfn.config import places
from clusterfn.config.yamlfile import Value, parse
from clusterfn.environment import package_sources
from clusterfn.environment.packages import RequirementLines
from clusterfn.environment.project import (
    LOCK_OF_SCRIPT,
    PYLOCK,
    PYPROJECT,
    SCRIPT,
    UV_LOCK,
    ProjectFile,
    digest,
    digests,
    load_toml,
    local_packages,
    normalize,
    source_tables,
    split_parts,
)
from clusterfn.environment.specification import WITH_EXTRAS, Requirement, Specification, conda_requirement
from clusterfn.errors import ConfigError, did_you_mean

# PEP 751 names these files.
_PYLOCK = re.compile(r"pylock(?:\.[^.]+)?\.toml")
_KEYS = (
    "name",
    "channels",
    "dependencies",
    "platforms",
    "prefix",
    "category",
    "pip-repositories",
    "allow-pypi-requests",
)
_LISTS = ("channels", "pip-repositories")
_ADVICE = {"variables": "set them with env={…} of @cluster, or `env:` of the host in clusterfn.yml"}
# The comment behind a line by which conda-lock limits it to systems. Hosts run Linux.
_SELECTOR = re.compile(r"#\s*\[(\w+)(?:\s+[\w\s]+)?\]\s*$")
_OF_LINUX, _OF_OTHERS = ("linux", "linux64", "unix"), ("osx", "osx64", "arm64", "win", "win64")
_BUILD = re.compile(r"(?P<name>[^=<>!\s]+)=(?P<version>[^=<>!*\s]+)=(?P<build>[^=<>!*\s]+)")
_PYTORCH_ENDED = "the channel pytorch has no release after PyTorch 2.5: conda-forge has pytorch, PyPI has torch"
_FROM_HISTORY = "`conda env export --from-history` writes only what you asked for"

_NAME = re.compile(r"\s*([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_OF_EXTRAS = re.compile(r"\s*([\w.-]+)\s*\[([^\]]*)\]")
_POETRY = "poetry and pdm write a file that pip reads: `poetry export > requirements.txt`"
_PIXI = "pixi writes a file that conda reads: `pixi workspace export conda-environment environment.yml`"
# What to do with the files of other tools, and with their tables in a pyproject.toml.
_OTHER_TOOLS = {"poetry": _POETRY, "pdm": _POETRY, "pixi": _PIXI}


def locate_file(text: str, folders: Sequence[Path]) -> Path:
    """Find the file relative to the first of the folders that has it; raise ConfigError if none has."""
    path = places.expanded(text)
    tried = [path] if path.is_absolute() else [folder / path for folder in dict.fromkeys(folders)]
    for place in tried:
        if place.is_file():
            return place.absolute()
    patterns = ("*.y*ml", "*.toml", "*.lock", "*.txt")
    folders_there = [place.parent for place in tried if place.parent.is_dir()]
    here = {file.name for folder in folders_there for pattern in patterns for file in folder.glob(pattern)}
    here.discard("clusterfn.yml")
    looked = " and ".join(str(place.parent) for place in tried)
    hint = "a relative path counts from the working directory, then from the folder of the script that runs"
    raise ConfigError(f"there is no {path.name} in {looked}{did_you_mean(path.name, here)}", hint=hint)


def read_file(path: Path, parts: Sequence[str] = ()) -> Specification:
    """Read the specification in a file, or accept the lock that it is; raise ConfigError with the line that is wrong.

    Args:
        parts: The extras and groups of a project that are wanted: "gpu", "group:dev".
    """
    of_project = {PYPROJECT: _read_pyproject, UV_LOCK: _read_uv_lock}.get(path.name)
    if path.suffix == ".py":
        # `uv lock --script` writes the one, and uv obeys it.
        lock = path.with_name(path.name + LOCK_OF_SCRIPT)
        return _read_uv_lock(lock, parts) if lock.is_file() else _read_pyproject(path, parts)
    if of_project or _PYLOCK.fullmatch(path.name):
        return (of_project or _read_pylock)(path, parts)
    if parts:
        hint = f'write environment="{path.name}", or name a pyproject.toml or its uv.lock'
        raise ConfigError(f"{path.name} has no extras and no groups, but {', '.join(parts)} is named", hint=hint)
    if path.suffix.lower() == ".txt":
        # This is pip's own file, read with the files that it names.
        lines = RequirementLines(path.parent)
        lines.read_file(path)
        if lines.is_empty:
            raise ConfigError(f"{path} lists no packages", hint="write one per line, such as numpy>=2")
        return lines.added_to(_specification(lines.project(path), (), lines.wishes()))
    if path.name.lower().endswith(("conda-lock.yml", "conda-lock.yaml")):
        return Specification(path.name, file=path, given_lock=path)
    if path.suffix.lower() not in (".yml", ".yaml"):
        hint = "name an environment.yml, pyproject.toml, uv.lock, pylock.toml or requirements.txt, or packages=[…]"
        raise ConfigError(f"{path} is not an environment.yml", hint=_OTHER_TOOLS.get(path.stem, hint))
    data = path.read_bytes()
    if re.search(rb"^package:", data, re.MULTILINE) and re.search(rb"^metadata:", data, re.MULTILINE):
        # It is a lock of conda-lock's with another name.
        return Specification(path.name, file=path, given_lock=path)
    if not data.strip():
        raise ConfigError(f"{path} is empty", hint='write "dependencies:" and the packages below it')
    return _read_environment_yml(parse(data, str(path)), path)


def _read_environment_yml(tree: Value, path: Path) -> Specification:
    keys = tree.mapping(_KEYS, _ADVICE)
    if "dependencies" not in keys:
        raise tree.error('there is no "dependencies:"', "list the packages below that key")
    texts = {name: value.as_lines() for name, value in keys.items() if name in _LISTS and value.kind != "null"}
    conda = list[Requirement]()
    pip = RequirementLines(path.parent)
    for index in texts.get("pip-repositories", ()):
        pip.add(f"--extra-index-url {index}")
    for item in _items(keys["dependencies"]):
        if item.kind == "map":
            for line in _items(item.mapping(("pip",))["pip"]):
                pip.add(line.as_text(), f"{path.name}:{line.line + 1}")
            continue
        text = item.as_text()
        place = f"{path.name}:{item.line + 1}"
        if WITH_EXTRAS.match(text):
            what = f"{place}: {text!r} has extras, and packages of conda have none"
            raise ConfigError(what, hint="write the line below `pip:`")
        conda.append(conda_requirement(text, place))
    written = [name for name in texts.get("channels", ()) if name != "nodefaults"]
    named = [requirement.channel for requirement in conda if requirement.channel]
    channels = dict.fromkeys([*(written or package_sources.usual_channels()), *named])
    ended = (_PYTORCH_ENDED,) if "pytorch" in written else ()
    spec = Specification(path.name, tuple(channels), tuple(conda), file=path, sentences=ended)
    return _lifted(pip.added_to(spec), keys.get("prefix"))


def _items(value: Value) -> Iterator[Value]:
    """Yield the lines that are for Linux."""
    if value.kind == "null":
        return
    if value.kind != "list":
        raise value.error(f"expected a list of packages, found {value.written}", 'start each line with "- "')
    for line in value.values:
        selector = _SELECTOR.search(line.source.lines[line.line])
        if selector and selector[1] not in (known := (*_OF_LINUX, *_OF_OTHERS)):
            raise line.error(f"[{selector[1]}] names no system", f"write one of {', '.join(known)}, or remove it")
        if not selector or selector[1] in _OF_LINUX:
            yield line


def _lifted(spec: Specification, prefix: Value | None) -> Specification:
    """Remove from an export what fits only the machine where it was made."""
    built = [requirement for requirement in spec.conda if _BUILD.fullmatch(requirement.text)]
    exported = prefix is not None or (len(built) >= 3 and len(built) == len(spec.conda))
    if not exported:
        return spec
    conda = tuple(
        replace(requirement, text=_BUILD.sub(r"\g<name> ==\g<version>", requirement.text)) for requirement in spec.conda
    )
    of = f" of {prefix.text} (line {prefix.line + 1})" if prefix is not None else ""
    lifted = f": the build strings of {len(built)} packages are dropped, their versions kept" if built else ""
    sentences = [*spec.sentences, f"{spec.title} is an export{of}{lifted}; {_FROM_HISTORY}"]
    return replace(spec, conda=conda, exported=True, sentences=tuple(sentences))


def _specification(project: ProjectFile, pip: Sequence[Requirement], wish: Mapping[str, Any]) -> Specification:
    parts = [*project.extras, *(f"group:{group}" for group in project.groups)]
    content = json.dumps({"project": project.kind, "parts": parts, **wish}, sort_keys=True)
    title = f"{project.path.name}[{','.join(parts)}]" if parts else project.path.name
    return Specification(title, pip=tuple(pip), file=project.path, wish=content, wheels=project)


def _read_pyproject(path: Path, parts: Sequence[str]) -> Specification:
    tree, kind = load_toml(path), PYPROJECT
    if path.suffix == ".py":
        if not tree:
            hint = "`uv add --script` writes it, or name another file with packages"
            raise ConfigError(f"{path} has no packages in a header (# /// script)", hint=hint)
        tree, kind = {"project": tree, "tool": tree.get("tool", {})}, SCRIPT
    table, tool = _table(tree, "project", path), _table(tree, "tool", path)
    if "project" not in tree:
        hints = [hint for name, hint in _OTHER_TOOLS.items() if name in tool]
        hint = hints[0] if hints else "add it, or write a requirements.txt"
        raise ConfigError(f"{path} has no [project] table", hint=hint)
    extras, groups = split_parts(parts)
    optional = {normalize(name): value for name, value in _table(table, "optional-dependencies", path).items()}
    known = {normalize(name): value for name, value in _table(tree, "dependency-groups", path).items()}
    dynamic = _lines(table, "dynamic", path)
    if "optional-dependencies" not in dynamic:
        _refuse_unknown("extra", extras, optional, path)
    _refuse_unknown("group", groups, known, path)
    direct = _lines(table, "dependencies", path)
    direct += [line for group in groups for line in _of_group(group, known, path)]
    direct += [line for extra in extras for line in _lines(optional, extra, path)]
    own = normalize(str(table.get("name", "")))
    seen = set(extras)
    # A line may ask for extras of the project itself, `mine[gpu]`, and so may those that it adds.
    for line in direct:
        of_own = _OF_EXTRAS.match(line)
        if of_own and normalize(of_own[1]) == own:
            more = {normalize(extra.strip()) for extra in of_own[2].split(",")} & optional.keys() - seen
            direct += [found for extra in sorted(more) for found in _lines(optional, extra, path)]
            seen |= more
    uv = _table(tool, "uv", path)
    given = {normalize(name): value for name, value in _table(uv, "sources", path).items()}
    sources = list(source_tables(given))
    listed = [index for index in uv.get("index") or () if isinstance(index, dict)]
    indexes = [(str(index.get("name", "")), str(index["url"])) for index in listed if "url" in index]
    # The addresses of packages and repositories have no name, as that of an index has one.
    indexes += [("", str(source[key])) for _, source in sources for key in ("git", "url") if key in source]
    is_dynamic = bool({"dependencies", "optional-dependencies"} & {*dynamic})
    requires = str(table.get("requires-python", ""))
    project = ProjectFile(kind, path, extras, groups, requires, indexes=tuple(indexes), is_dynamic=is_dynamic)
    local = local_packages(path.parent, uv)
    wish = {"direct": sorted(direct), "python": project.requires_python, "uv": uv, "local": local}
    if dynamic:
        wish["built"] = {**digests(path.parent, tree), "tool": tool.get("setuptools", {})}
    names = [(_NAME.match(line), line.strip()) for line in direct]
    wanted = [Requirement(normalize(name[1]) if name else "", line) for name, line in names]
    # TOML has dates, which JSON has not.
    spec = _specification(project, wanted, json.loads(json.dumps(wish, default=str)))
    indexes_of_torch = [
        source["index"]
        for package, source in sources
        if package == "torch" and "index" in source and source.get("extra", "") in ("", *extras)
    ]
    of_torch = [url for chosen in indexes_of_torch for name, url in indexes if name == chosen]
    return replace(
        spec,
        indexes=tuple(of_torch),
        sentences=tuple(_left_out(tool, {own, *(requirement.name for requirement in wanted)}, dynamic, path)),
    )


def _left_out(tool: Mapping[str, Any], known: Container[str], dynamic: Sequence[str], path: Path) -> Iterator[str]:
    """Yield what to say of packages that only another tool's own table has, which uv does not read."""
    for name, keys in (("pixi", ("dependencies", "pypi-dependencies")), ("poetry", ("dependencies",))):
        # The build backend of poetry reads its table where [project] leaves the dependencies to it.
        if name == "poetry" and "dependencies" in dynamic:
            continue
        listed = [group for key in keys for group in _table(_table(tool, name, path), key, path)]
        missing = [group for group in listed if normalize(group) not in known and group != "python"]
        if missing:
            left_out = f"the tables of [tool.{name}] are not read, so these are left out: {', '.join(missing)}"
            yield f"{path.name}: {left_out}; {_OTHER_TOOLS[name]}"


def _table(tree: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = tree.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name}: {key} is not a table", hint="correct it; uv check shows such errors too")
    return value


def _lines(tree: Mapping[str, Any], key: str, path: Path) -> list[str]:
    value = tree.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"{path.name}: {key} is not a list of strings", hint=f'write {key} = ["numpy>=2"]')
    return list(value)


def _of_group(name: str, known: Mapping[str, Any], path: Path, within: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the dependencies of a group, and of the groups that it includes."""
    _refuse_unknown("group", [name], known, path)
    if name in within:
        raise ConfigError(f"{path.name}: the group {name} includes itself", hint="remove one include-group")
    for entry in known[name]:
        if isinstance(entry, dict):
            yield from _of_group(normalize(str(entry.get("include-group", ""))), known, path, (*within, name))
        else:
            yield str(entry)


def _refuse_unknown(kind: str, names: Sequence[str], known: Mapping[str, Any], path: Path) -> None:
    has = ", ".join(sorted(known)) or f"no {kind}s"
    for name in names:
        if name not in known:
            raise ConfigError(f"{path.name} has no {kind} {name!r}{did_you_mean(name, known)}", hint=f"it has {has}")


def _read_uv_lock(path: Path, parts: Sequence[str]) -> Specification:
    beside = path.with_name(PYPROJECT if path.name == UV_LOCK else path.name[: -len(LOCK_OF_SCRIPT)])
    if not beside.is_file():
        raise ConfigError(f"{path} has no {beside.name} beside it", hint=f"copy it there, or export a {PYLOCK}")
    spec = _read_pyproject(beside, parts)
    data = path.read_bytes()
    assert spec.project is not None
    # To parse 10 000 lines of TOML takes seconds, and one value is needed.
    python = re.search(rb'^requires-python = "([^"]*)"', data, re.MULTILINE)
    wanted = python[1].decode() if python else spec.project.requires_python
    locked = replace(spec.project, kind=UV_LOCK, path=path, requires_python=wanted)
    return _specification(locked, spec.pip, {"lock": digest(data), "pyproject": spec.wish})


def _read_pylock(path: Path, parts: Sequence[str]) -> Specification:
    tree = load_toml(path)
    packages = tree.get("packages")
    if not isinstance(packages, list) or not all(
        isinstance(package, dict) and "name" in package for package in packages
    ):
        hint = "`uv export --format pylock.toml -o pylock.toml` writes it"
        raise ConfigError(f"{path} has no packages of a pylock.toml", hint=hint)
    extras, groups = split_parts(parts)
    for kind, names, key in (("extra", extras, "extras"), ("group", groups, "dependency-groups")):
        _refuse_unknown(kind, names, dict.fromkeys(map(normalize, _lines(tree, key, path))), path)
    pip = [Requirement(normalize(str(package["name"])), str(package["name"])) for package in packages]
    project = ProjectFile(PYLOCK, path, extras, groups, requires_python=str(tree.get("requires-python", "")))
    return _specification(project, pip, {"lock": digest(path.read_bytes())})
