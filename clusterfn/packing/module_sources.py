"""Collect the source of the user's own modules that a call needs, with what they import in turn.

Whole top-level packages are sent, except files that look like keys or passwords, and data files that are large. A
package with a compiled extension is not sent: it is used in place on this machine, and elsewhere belongs to the
environment. `imported` and `guarded` read from a source what it imports, and which names depend on that.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import sys
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.errors import PayloadError
from clusterfn.hosts.bridge_bundle import FileBundle, make
from clusterfn.packing import own_modules

MAX_ALL_BYTES = 50 << 20


class Compiled(NamedTuple):
    """A module or package of the user's own that is not sent, because it has a compiled extension.

    Attributes:
        name: As an import names it.
        extension: The file, or the first one.
        folder: Where an import finds it on this machine.
    """

    name: str
    extension: Path
    folder: Path


# What is compiled, by the top-level name of each module that was looked at.
_compiled: dict[str, tuple[Compiled, ...]] = {}


def compiled_in(name: str) -> tuple[Compiled, ...]:
    """Return what of a top-level module was not sent, because it is compiled."""
    return _compiled.get(name, ())


def collect(names: Iterable[str]) -> tuple[FileBundle | None, tuple[Compiled, ...]]:
    """Collect the files of the user's own modules among `names`, and of those that they import; None if none.

    Args:
        names: Names of modules; only the part before the first dot matters.

    Returns:
        The files, and which of these modules are not among them because they are compiled.

    Raises:
        PayloadError: They are larger than 50 MB.
    """
    waiting = {name.partition(".")[0] for name in names}
    done: set[str] = set()
    files: dict[str, Path] = {}
    total = 0
    while waiting:
        name = waiting.pop()
        done.add(name)
        own = dict(_source_members(name, MAX_ALL_BYTES - total))
        files.update(own)
        total += sum(path.stat().st_size for path in own.values())
        # The check comes at once, because the folder may contain a whole disk.
        if total > MAX_ALL_BYTES:
            raise _too_large(files)
        code = [path for path in own.values() if path.suffix == ".py"]
        waiting |= {each for path in code for each in _imports(path, path.stat().st_mtime_ns)} - done
    files.update({f"{path.parent.name}/{path.name}": path for path in _metadata_of(files)})
    bundle = make({relative: path.read_bytes() for relative, path in files.items()}) if files else None
    return bundle, tuple(each for name in sorted(done) for each in compiled_in(name))


def _source_members(name: str, most: int) -> Iterator[tuple[str, Path]]:
    """Yield the files of a module that go as source, and note what does not; stop after so many bytes."""
    members: dict[str, Path] = {}
    total = 0
    for relative, path in own_modules.source_files(name):
        # The first of two folders of a namespace package wins, as in an import.
        members.setdefault(relative, path)
        total += 0 if own_modules.is_compiled(path) else path.stat().st_size
        if total > most:
            break
    compiled: dict[str, Compiled] = {}
    for relative, path in members.items():
        if own_modules.is_compiled(path):
            unit = _unit(relative, path)
            compiled.setdefault(unit, Compiled(unit, path, path.parents[relative.count("/")]))
    _compiled[name] = tuple(compiled.values())
    yield from (each for each in members.items() if not compiled or _unit(*each) not in compiled)


def _unit(relative: str, path: Path) -> str:
    """Return the outermost regular package around a file; in a namespace package alone, the module itself."""
    *folders, file = relative.split("/")
    for count in range(1, len(folders) + 1):
        if (path.parents[len(folders) - count] / "__init__.py").is_file():
            return ".".join(folders[:count])
    return ".".join([*folders, file.partition(".")[0]])


def _too_large(files: Mapping[str, Path]) -> PayloadError:
    largest = sorted(((path.stat().st_size, relative) for relative, path in files.items()), reverse=True)[:5]
    return PayloadError(
        f"the modules that the function needs are larger than {format_size(MAX_ALL_BYTES)}",
        evidence=[f"{format_size(size):>10}  {relative}" for size, relative in largest],
        hint="pass data as clusterfn.File or clusterfn.Directory, or install the package in the environment",
    )


def modules_in(bundle: FileBundle) -> list[str]:
    """Return the modules in a bundle made by `collect`.

    Example:
        >>> modules_in(make({"pkg/__init__.py": b"", "pkg/data.csv": b""}))
        ['pkg']
    """
    files = [file[:-3].split("/") for file in bundle.files if file.endswith(".py")]
    return sorted(".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in files)


@functools.lru_cache(maxsize=4096)
def _imports(path: Path, mtime_ns: int) -> frozenset[str]:
    return imported(path.read_bytes())


_METADATA = ("METADATA", "PKG-INFO", "entry_points.txt", "top_level.txt")


def _metadata_of(files: Mapping[str, Path]) -> Iterator[Path]:
    """Yield the metadata of the projects of these files: packages read their own version from it."""
    places = {name.partition("/")[0].removesuffix(".py"): os.path.realpath(path) for name, path in files.items()}
    folders = [each or os.curdir for each in sys.path if files and os.path.isdir(each or os.curdir)]
    for folder, project, top_level in _installed(tuple((each, os.stat(each).st_mtime_ns) for each in folders)):
        beneath = project and any(place.startswith(project + os.sep) for place in places.values())
        if beneath or not top_level.isdisjoint(places):
            yield from (path for path in (folder / name for name in _METADATA) if path.is_file())


@functools.lru_cache(maxsize=4)
def _installed(folders: tuple[tuple[str, int], ...]) -> list[tuple[Path, str, frozenset[str]]]:
    """List the projects with metadata in these folders: its place, the folder of an editable one, top-level names."""
    projects = []
    for folder, _ in folders:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.name.endswith((".dist-info", ".egg-info")) and each.is_dir()]
        for name in sorted(names):
            path = Path(folder, name)
            top_level = frozenset(_text(path / "top_level.txt").split())
            projects.append((path, _project(_text(path / "direct_url.json")), top_level))
    return projects


def _project(direct_url: str) -> str:
    """Return the folder of an editable installation, as the installer wrote it (PEP 610); "" for any other."""
    # Another installer may write the file in another way.
    with contextlib.suppress(ValueError, KeyError, AttributeError):
        origin = json.loads(direct_url or "{}")
        if origin.get("dir_info", {}).get("editable"):
            path = urllib.parse.unquote(urllib.parse.urlsplit(origin["url"]).path)
            return os.path.realpath(path.lstrip("/") if os.name == "nt" else path)
    return ""


def _text(path: Path) -> str:
    # Most projects have no such file.
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""


def imported(source: bytes | str) -> frozenset[str]:
    """Return the top-level names that a source imports anywhere, but not those for type checkers alone.

    Example:
        >>> sorted(imported("import numpy.linalg, os\\nfrom torch import nn\\nfrom . import x"))
        ['numpy', 'os', 'torch']
    """
    try:
        return frozenset(_imported(ast.parse(source)))
    except (SyntaxError, ValueError):
        return frozenset()


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from [child.module.partition(".")[0]] if child.module and not child.level else []
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from (name for part in child.orelse for name in _imported(ast.Module([part], [])))
        else:
            yield from _imported(child)


class Guarded(NamedTuple):
    """A name of a module that `try: import …` sets.

    Attributes:
        modules: What is imported there, any of which may be missing.
        value: The constant that it is set to.
        is_fallback: Whether it is set where the import fails, rather than where it succeeds.
    """

    modules: tuple[str, ...]
    value: object
    is_fallback: bool

    def missing(self, value: object) -> str:
        """Return the module whose absence on this machine gave the name its value; "" if that is not its cause."""
        if (value is self.value) is not self.is_fallback:
            return ""
        unknown = (name for name in self.modules if name not in sys.modules and own_modules.find_spec(name) is None)
        return next(unknown, "")


@functools.lru_cache(maxsize=256)
def guarded(source: str) -> Mapping[str, Guarded]:
    """Return the names that a source's top level sets to a constant in a `try: import …` or its `except`."""
    guards: dict[str, Guarded] = {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        # A cell of a notebook may have magics, which are not Python.
        return guards
    for node in tree.body:
        if isinstance(node, ast.Try) and any(map(_catches_import, node.handlers)):
            modules = tuple(_imported(ast.Module(node.body, [])))
            for name, value in _constants([*node.body, *node.orelse]):
                guards[name] = Guarded(modules, value, False)
            for handler in filter(_catches_import, node.handlers):
                guards.update((name, Guarded(modules, value, True)) for name, value in _constants(handler.body))
    return guards


def _catches_import(handler: ast.ExceptHandler) -> bool:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {each.id for each in types if isinstance(each, ast.Name)}
    return handler.type is None or bool(names & {"ImportError", "ModuleNotFoundError", "Exception"})


def _constants(body: Iterable[ast.stmt]) -> Iterator[tuple[str, object]]:
    for each in body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            yield from ((name.id, each.value.value) for name in each.targets if isinstance(name, ast.Name))
