"""What others read in a file: pip's own parser, PyYAML with conda's own syntax of packages, and packaging.

Each returns lines in one spelling, so that two readings can be compared. What they reject is a `Rejected`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomllib
import yaml
from packaging.markers import Marker, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name

PYTHON = "3.11.7"
_MACHINE: dict[str, str] = {
    "implementation_name": "cpython", "os_name": "posix", "platform_machine": "x86_64",
    "platform_python_implementation": "CPython", "platform_system": "Linux", "sys_platform": "linux", "extra": "",
}  # fmt: skip


class Rejected(Exception):
    """The other reader rejects the file, too."""


def _environment(minor: int) -> dict[str, str]:
    full = f"3.{minor}.7"
    versions = {"implementation_version": full, "python_full_version": full, "python_version": f"3.{minor}"}
    return {**default_environment(), **_MACHINE, **versions}


def _minor(wanted: str) -> int:
    """Return the minor version of Python that fits, nearest to 3.11."""
    return min((each for each in range(8, 20) if SpecifierSet(wanted).contains(f"3.{each}.7")),
               key=lambda each: (abs(each - 11), -each))  # fmt: skip


def uv_rejects(path: Path) -> str:
    """Return why uv does not understand a file of requirements; "" if it does."""
    argv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", path.name, "--no-deps", "--no-config", "-q"]
    argv += ["--offline", "--no-index", "--python", sys.executable]
    ran = subprocess.run(argv, cwd=path.parent, capture_output=True, text=True)
    return " ".join(ran.stderr.split()) if ran.returncode not in (0, 1) else ""


def uv_rejects_lines(given: Sequence[str], folder: Path) -> str:
    """Return the same of lines."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=folder, encoding="utf-8") as file:
        file.write("\n".join([*given, ""]))
        file.flush()
        return uv_rejects(Path(file.name))


def requirements(path: Path) -> set[str]:
    """Read a file as pip does."""
    found = set[str]()
    with _inside(path.parent), _rejected():
        for line in _parser_of_pip().parse(path.name, constraint=False):
            found.update(_of_requirement(line) if line.is_requirement else _of_options(line, path.parent))
            if line.is_requirement and not line.is_editable:  # pip heeds these there, too
                found.update(each for each in _of_options(line, path.parent) if "binary " in each)
    return found


@functools.lru_cache(maxsize=1)
def _parser_of_pip() -> Any:
    from pip._internal.network.session import PipSession
    from pip._internal.req.req_file import RequirementsFileParser, get_line_parser

    return RequirementsFileParser(PipSession(), get_line_parser(None))


def lines(given: Sequence[str], folder: Path) -> set[str]:
    """Read lines as pip would read them in a file of that folder."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=folder, encoding="utf-8") as file:
        file.write("\n".join([*given, ""]))
        file.flush()
        return requirements(Path(file.name))


def _of_requirement(line: Any) -> Iterator[str]:
    from pip._internal.req.constructors import install_req_from_editable, install_req_from_line

    made = install_req_from_editable(line.requirement) if line.is_editable else install_req_from_line(line.requirement)
    extras = sorted({*made.extras, *(made.req.extras if made.req else ())})
    name = canonicalize_name(made.req.name) if made.req else ""
    where = made.link.url if made.link else (made.req.url if made.req and made.req.url else "")
    versions = "" if where or not made.req else ",".join(sorted(map(str, made.req.specifier)))
    marker = made.markers or (made.req.marker if made.req else None)
    kind = "constraint" if line.constraint else "local" if where.startswith("file:") else "requirement"
    shown = f"{kind} {'' if where else name}[{','.join(extras)}] {versions}{where} ; {marker or ''}"
    yield re.sub(r"\[\] ", " ", shown).replace("  ", " ").strip(" ;")
    hashes = getattr(line.opts, "hashes", None) or {}
    yield from (f"hash {name} {kind}:{digest}" for kind, digests in hashes.items() for digest in digests)
    for option in ("global_options", "config_settings"):
        if getattr(line.opts, option, None):
            yield f"{option} {name} {getattr(line.opts, option)}"


def _of_options(line: Any, folder: Path) -> Iterator[str]:
    opts = line.opts
    if opts.index_url:
        yield f"index {opts.index_url}"
    yield from (f"further index {url}" for url in opts.extra_index_urls or ())
    for place in opts.find_links or ():
        beside = Path(line.filename).parent / place
        yield f"links {place if '://' in place else (folder / beside).resolve()}"
    for flag in ("pre", "no_index", "require_hashes", "prefer_binary"):
        if getattr(opts, flag, None):
            yield flag
    control = opts.format_control
    for kind in ("no_binary", "only_binary") if control else ():
        yield from (f"{kind} {name}" for name in getattr(control, kind))


def environment_yml(path: Path) -> tuple[set[str], set[str]]:
    """Return the packages and channels that conda reads, and what pip would read of its section."""
    try:
        tree = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise Rejected(f"not YAML: {str(error)[:100]}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("dependencies"), list):
        raise Rejected("no list of dependencies")
    conda, pip = set[str](), [f"--extra-index-url {each}" for each in tree.get("pip-repositories") or ()]
    for item in tree["dependencies"]:
        if isinstance(item, str):
            conda.add(conda_package(item))
        elif isinstance(item, dict):
            pip += [str(line) for line in item.get("pip") or ()]
        else:
            raise Rejected(f"{item!r} is not a package")
    channels = [str(each) for each in tree.get("channels") or () if each != "nodefaults"]
    return conda | {f"channel {each}" for each in channels}, lines(pip, path.parent) if pip else set()


def conda_package(text: str) -> str:
    """Return a package in one spelling, as conda's own syntax means it."""
    from rattler import MatchSpec

    try:
        made = MatchSpec(text, strict=False)
    except Exception as error:  # of Rust
        raise Rejected(f"{text!r}: {error}") from error
    channel = made.channel.name if made.channel else ""
    return f"conda {channel}::{made.name.normalized} {made.version or ''} {made.build or ''}".strip()


def pyproject(path: Path, extras: Sequence[str] = (), groups: Sequence[str] = ()) -> set[str]:
    """Read what a pyproject.toml asks for."""
    tree = _toml(path)
    if "project" not in tree:
        raise Rejected("no [project] table")
    project = tree["project"]
    own = canonicalize_name(str(project.get("name", "")))
    optional = {canonicalize_name(name): each for name, each in project.get("optional-dependencies", {}).items()}
    waiting = [*project.get("dependencies", []), *(line for name in extras for line in optional[name])]
    for group in groups:
        waiting += _group(tree.get("dependency-groups", {}), group)
    found, seen = {f"python {project.get('requires-python', '')}"}, set[str]()
    while waiting:
        text = waiting.pop()
        if text in seen:
            continue
        seen.add(text)
        found.add(spelled(text))
        of = Requirement(text)
        if canonicalize_name(of.name) == own:
            waiting += [line for name in of.extras for line in optional.get(canonicalize_name(name), [])]
    return found


def _group(groups: Mapping[str, Any], name: str) -> list[str]:
    known = {canonicalize_name(key): value for key, value in groups.items()}
    found = []
    for each in known[canonicalize_name(name)]:
        found += _group(groups, each["include-group"]) if isinstance(each, dict) else [each]
    return found


def spelled(text: str) -> str:
    """Return a requirement in one spelling."""
    try:
        made = Requirement(text)
    except InvalidRequirement as error:
        raise Rejected(f"{text!r}: {str(error)[:80]}") from error
    extras = f"[{','.join(sorted(made.extras))}]" if made.extras else ""
    versions = ",".join(sorted(map(str, made.specifier)))
    what = f"requirement {canonicalize_name(made.name)}{extras} {versions}{made.url or ''}"
    return f"{what} ; {made.marker or ''}".strip(" ;")


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"not TOML: {error}") from error


def uv_lock(path: Path) -> dict[str, str]:
    """Return the versions that a uv.lock has for the project beside it, following its graph with markers."""
    tree = _toml(path)
    project = _toml(path.with_name("pyproject.toml"))
    if "project" not in project:
        raise Rejected("no [project] table")
    own = canonicalize_name(project["project"]["name"])
    by_name: dict[str, list[dict[str, Any]]] = {}
    for each in tree.get("package", []):
        by_name.setdefault(canonicalize_name(each["name"]), []).append(each)
    roots = [each for each in by_name.get(own, []) if set(each["source"]) & {"editable", "virtual", "directory"}]
    if not roots:
        raise Rejected("the lock does not have the project")
    environment = _environment(_minor(str(tree.get("requires-python", ""))))
    found: dict[str, str] = {}
    waiting: list[tuple[dict[str, Any], tuple[str, ...]]] = [(roots[0], ())]
    seen = set[tuple[str, str, str, tuple[str, ...]]]()
    while waiting:
        package, extras = waiting.pop()
        key = (package["name"], package.get("version", ""), str(package["source"]), extras)
        if key in seen:
            continue
        seen.add(key)
        if "registry" in package["source"] or "url" in package["source"]:
            found[canonicalize_name(package["name"])] = package["version"]
        elif "git" in package["source"]:
            found[canonicalize_name(package["name"])] = "git"
        wanted = [*package.get("dependencies", [])]
        wanted += [each for extra in extras for each in package.get("optional-dependencies", {}).get(extra, [])]
        for each in wanted:
            if each.get("marker") and not _holds(each["marker"], environment):
                continue
            choices = [one for one in by_name[canonicalize_name(each["name"])]
                       if each.get("version", one.get("version")) == one.get("version")
                       and each.get("source", one["source"]) == one["source"]
                       and _fits(one.get("resolution-markers"), environment)]  # fmt: skip
            waiting += [(one, tuple(sorted(each.get("extra", [])))) for one in choices[:1]]
    return found


def _fits(markers: Sequence[str] | None, environment: Mapping[str, str]) -> bool:
    return not markers or any(_holds(each, environment) for each in markers)


def _holds(marker: str, environment: Mapping[str, str]) -> bool:
    return Marker(marker).evaluate(dict(environment))


def pylock(path: Path) -> dict[str, str]:
    """Return the versions that packaging chooses from a pylock.toml."""
    from packaging.pylock import PackageDirectory, Pylock, PylockSelectError, PylockValidationError

    try:
        made = Pylock.from_dict(_toml(path))
        minor = _minor(str(made.requires_python or ""))
        chosen = made.select(environment=_environment(minor), tags=list(_tags(minor)))
        return {package.name: str(package.version or "") for package, file in chosen
                if not isinstance(file, PackageDirectory)}  # fmt: skip
    except (PylockValidationError, PylockSelectError) as error:
        raise Rejected(str(error)[:200]) from error


def _tags(minor: int) -> Iterator[Tag]:
    from packaging.tags import compatible_tags, cpython_tags

    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    yield from cpython_tags((3, minor), platforms=platforms)
    yield from compatible_tags((3, minor), f"cp3{minor}", platforms)


def conda_lock(path: Path) -> set[str]:
    """Return the rows of a lock of conda-lock's that are installed by default, as its format says."""
    tree = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    rows = tree.get("package") if isinstance(tree, dict) else None
    if not isinstance(rows, list):
        raise Rejected("no list of packages")
    return {f"{each['platform']} {each['manager']} {each['name']} {each['version']} {each['url']}" for each in rows
            if each.get("category", "main") == "main" and not each["name"].startswith("__")}  # fmt: skip


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _rejected() -> Iterator[None]:
    from pip._internal.exceptions import PipError
    from pip._vendor.packaging.markers import InvalidMarker

    try:
        yield
    except (PipError, InvalidMarker, InvalidRequirement, ValueError, OSError) as error:
        raise Rejected(" ".join(str(error).split())[:200]) from error
