"""Which of the user's own modules a call needs, and their source.

The user's own are those outside the standard library and site-packages: next to the script or notebook, below the
project's root, on PYTHONPATH, or editable. Whole top-level packages are sent, with what they import in turn, except
files that look like keys or passwords. A package with a compiled extension is not sent: it is used in place on this
machine, and elsewhere belongs to the environment. Nothing is executed or imported here.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import json
import os
import re
import struct
import sys
import sysconfig
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from clusterfn.bridge import layout
from clusterfn.calls.files import holds_credentials
from clusterfn.errors import PayloadError
from clusterfn.hosts.bridge_bundle import FileBundle, make

MAX_DATA_FILE = 1 << 20
MAX_ALL_BYTES = 50 << 20
_LOOKED_AT = 20_000  # entries of a folder without Python files: it holds data
_EXTENSIONS = (".so", ".pyd", ".dylib")
_LEFT_OUT = frozenset(["__pycache__", "node_modules", "build", "dist"])
# This program, its clusterfn and its cloudpickle: the bridge brings them.
_NEVER = frozenset(["__main__", "__mp_main__", "clusterfn", "_clusterfn", "_clusterfn_wire", "cloudpickle"])
_seen: dict[Path, tuple[int, int]] = {}
_told: set[tuple[Path, tuple[int, int]]] = set()
withheld: set[Path] = set()  # what looks like a key or a password and was left out
too_large: set[Path] = set()  # data that was left out


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


_compiled: dict[str, tuple[Compiled, ...]] = {}  # by the top-level name of each that was looked at


def compiled_in(name: str) -> tuple[Compiled, ...]:
    """Return what of a top-level module was not sent, because it is compiled."""
    return _compiled.get(name, ())


def sources(wanted: Iterable[str]) -> FileBundle | None:
    """Return what `collect` returns, without what is compiled."""
    return collect(wanted)[0]


def collect(wanted: Iterable[str]) -> tuple[FileBundle | None, tuple[Compiled, ...]]:
    """Collect the files of the user's own modules among `wanted`, and of those that they import; None if none.

    Args:
        wanted: Names of modules; only the part before the first dot matters.

    Returns:
        The files, and which of these modules are not among them because they are compiled.

    Raises:
        PayloadError: They are larger than 50 MB.
    """
    waiting = {name.partition(".")[0] for name in wanted}
    done: set[str] = set()
    files: dict[str, Path] = {}
    total = 0
    while waiting:
        name = waiting.pop()
        done.add(name)
        own = dict(_source_members(name, MAX_ALL_BYTES - total))
        files.update(own)
        total += sum(path.stat().st_size for path in own.values())
        if total > MAX_ALL_BYTES:  # at once: there may be a whole disk below
            raise _too_large(files)
        waiting |= {each for path in own.values() for each in _imports(path)} - done
    files.update({f"{path.parent.name}/{path.name}": path for path in _metadata_of(files)})
    bundle = make({relative: path.read_bytes() for relative, path in files.items()}) if files else None
    return bundle, tuple(each for name in sorted(done) for each in compiled_in(name))


def _source_members(name: str, most: int) -> Iterator[tuple[str, Path]]:
    """Yield the files of a module that go as source, and note what does not; stop after so many bytes."""
    members: dict[str, Path] = {}
    total = 0
    for relative, path in _members(name):
        members.setdefault(relative, path)  # of two folders of a namespace package the first wins, as in an import
        total += 0 if _is_compiled(path) else path.stat().st_size
        if total > most:
            break
    found: dict[str, Compiled] = {}
    for relative, path in members.items():
        if _is_compiled(path):
            unit = _unit(relative, path)
            found.setdefault(unit, Compiled(unit, path, path.parents[relative.count("/")]))
    _compiled[name] = tuple(found.values())
    yield from (each for each in members.items() if not found or _unit(*each) not in found)


def _is_compiled(path: Path) -> bool:
    return path.name.endswith(_EXTENSIONS)


def _unit(relative: str, path: Path) -> str:
    """Return the outermost regular package around a file; in a namespace package alone, the module itself."""
    *folders, file = relative.split("/")
    for count in range(1, len(folders) + 1):
        if (path.parents[len(folders) - count] / "__init__.py").is_file():
            return ".".join(folders[:count])
    return ".".join([*folders, file.partition(".")[0]])


def names(parcel: FileBundle) -> list[str]:
    """Return the modules in a bundle made by `sources`.

    Example:
        >>> names(make({"pkg/__init__.py": b"", "pkg/data.csv": b""}))
        ['pkg']
    """
    files = [file[:-3].split("/") for file in parcel.files if file.endswith(".py")]
    return sorted(".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in files)


def edited(imported: Iterable[str]) -> list[str]:
    """Return the modules whose file has changed since it was imported here; each change once.

    What was imported is read from Python's own byte code file; where there is none, from the first look.
    """
    changed = []
    for name in sorted(imported):
        path = _module_file(name)
        if path is not None:
            stat = path.stat()
            now = (stat.st_mtime_ns, stat.st_size)
            compiled = _compiled_from(name)
            before = _seen.setdefault(path, now)
            in_byte_code = (int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF)
            is_new = before != now if compiled is None else compiled != in_byte_code
            if is_new and (path, now) not in _told:
                _told.add((path, now))
                changed.append(name)
            _seen[path] = now
    return changed


def _compiled_from(name: str) -> tuple[int, int] | None:
    """Return time and size of the source that a module's byte code file was made from."""
    cached = getattr(sys.modules[name].__spec__, "cached", None)
    if not cached or sys.dont_write_bytecode:  # then an old one may be there
        return None
    try:
        with Path(cached).open("rb") as file:
            magic, flags, mtime, size = struct.unpack("<4sIII", file.read(16))
    except (OSError, struct.error):
        return None
    return (mtime, size) if magic == importlib.util.MAGIC_NUMBER and not flags else None


def is_own(name: str) -> bool:
    """Whether a module (by its name) is one of the user's own, which travel as source."""
    return bool(_locations(name.partition(".")[0]))


@functools.lru_cache(maxsize=1)
def _foreign_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({os.path.realpath(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")})


@functools.lru_cache(maxsize=1024)
def _is_foreign(real: str) -> bool:
    parts = Path(real).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return any(real == folder or real.startswith(folder + os.sep) for folder in _foreign_folders())


def _locations(name: str) -> list[Path]:
    """Return the file of a module, or the folders of a package, if it is the user's own."""
    if name in _NEVER or name in sys.builtin_module_names:
        return []
    spec = _spec(name)
    if spec is None:
        return []
    places: list[str] = []
    if spec.submodule_search_locations is not None:
        places = list(spec.submodule_search_locations)
        if not spec.has_location:  # without an __init__.py: any folder of that name, as ./wandb with the logs of runs
            places = [place for place in places if _holds_code(place)]
    elif spec.origin and spec.has_location:
        places = [spec.origin]
    return [path for path in map(Path, places) if not _is_foreign_place(path) and path.exists()]


def _holds_code(folder: str) -> bool:
    """Return whether an import finds a module in this folder, or in one below it that an import can name."""
    left = _LOOKED_AT
    for _, folders, names in os.walk(folder):
        if any(name.endswith((".py", *_EXTENSIONS)) for name in names):
            return True
        folders[:] = sorted(name for name in folders if name.isidentifier() and name not in _LEFT_OUT)
        left -= len(names) + len(folders)
        if left < 0:
            return False
    return False


_foreign_places: set[Path] = set()  # as modules name them: each call of a function looks at the same ones


def _is_foreign_place(place: Path) -> bool:
    """Whether what is there is not the user's own. A package may become a link to a checkout at any time."""
    is_link = place.is_symlink()
    if place in _foreign_places and not is_link:
        return True
    is_foreign = _is_foreign(os.path.realpath(place))
    if is_foreign and not is_link and place.is_absolute():
        _foreign_places.add(place)
    return is_foreign


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    if loaded is not None:
        return spec
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _module_file(name: str) -> Path | None:
    origin = getattr(sys.modules.get(name), "__file__", None)
    return Path(origin) if origin and is_own(name) and Path(origin).exists() else None


def _members(name: str) -> Iterator[tuple[str, Path]]:
    for place in _locations(name):
        if place.is_file():
            yield place.name, place
        else:
            for path in _package_files(place):
                yield f"{name}/{path.relative_to(place).as_posix()}", path


def _package_files(package: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(package, followlinks=True):
        folders[:] = sorted(entry for entry in folders if _is_part(Path(folder, entry)))
        for name in sorted(names):
            path = Path(folder, name)
            if travels(path):
                yield path


def _is_part(folder: Path) -> bool:
    """Whether a folder in a package is sent. A link is if it leads to a package of the user's, and not above itself."""
    if folder.name in _LEFT_OUT or folder.name.startswith("."):
        return False
    if not folder.is_symlink():
        return True
    if not (folder / "__init__.py").is_file() or _is_foreign(os.path.realpath(folder)):
        return False
    real = folder.resolve()  # links may also lead to each other
    return not any(above.resolve().is_relative_to(real) for above in folder.parents)


def travels(path: Path) -> bool:
    if path.suffix in (".pyc", ".pyo") or not path.is_file():  # an editor's lock is a link that leads nowhere
        return False
    if path.suffix == ".py" or _is_compiled(path):
        return True
    if holds_credentials(path):
        withheld.add(path)
        return False
    if path.stat().st_size > MAX_DATA_FILE:
        too_large.add(path)
        return False
    return True


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
    found = []
    for folder, _ in folders:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.name.endswith((".dist-info", ".egg-info")) and each.is_dir()]
        for name in sorted(names):
            path = Path(folder, name)
            top_level = frozenset(_text(path / "top_level.txt").split())
            found.append((path, _project(_text(path / "direct_url.json")), top_level))
    return found


def _project(direct_url: str) -> str:
    """Return the folder of an editable installation, as the installer wrote it (PEP 610); "" for any other."""
    try:
        told = json.loads(direct_url or "{}")
        if told.get("dir_info", {}).get("editable"):
            path = urllib.parse.unquote(urllib.parse.urlsplit(told["url"]).path)
            return os.path.realpath(path.lstrip("/") if os.name == "nt" else path)
    except (ValueError, KeyError, AttributeError):  # by another installer
        return ""
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # most have none
        return ""


def _too_large(files: Mapping[str, Path]) -> PayloadError:
    largest = sorted(((path.stat().st_size, relative) for relative, path in files.items()), reverse=True)[:5]
    return PayloadError(
        f"the modules that the function needs are larger than {MAX_ALL_BYTES >> 20} MB",
        evidence=[f"{size / 2**20:8.1f} MB  {relative}" for size, relative in largest],
        hint="pass data as clusterfn.File or clusterfn.Directory, or install the package in the environment",
    )


def _imports(path: Path) -> frozenset[str]:
    if path.suffix != ".py":
        return frozenset()
    return _parsed_imports(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _parsed_imports(path: Path, mtime_ns: int) -> frozenset[str]:
    return imported(path.read_bytes())


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
        return next((name for name in self.modules if name not in sys.modules and _spec(name) is None), "")


@functools.lru_cache(maxsize=256)
def guarded(source: str) -> Mapping[str, Guarded]:
    """Return the names that a source's top level sets to a constant in a `try: import …` or its `except`."""
    found: dict[str, Guarded] = {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a cell of a notebook with magics
        return found
    for node in tree.body:
        if isinstance(node, ast.Try) and any(map(_catches_import, node.handlers)):
            wanted = tuple(_imported(ast.Module(node.body, [])))
            for name, value in _constants([*node.body, *node.orelse]):
                found[name] = Guarded(wanted, value, False)
            for handler in filter(_catches_import, node.handlers):
                found.update((name, Guarded(wanted, value, True)) for name, value in _constants(handler.body))
    return found


def _catches_import(handler: ast.ExceptHandler) -> bool:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {each.id for each in types if isinstance(each, ast.Name)}
    return handler.type is None or bool(names & {"ImportError", "ModuleNotFoundError", "Exception"})


def _constants(body: Iterable[ast.stmt]) -> Iterator[tuple[str, object]]:
    for each in body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            yield from ((name.id, each.value.value) for name in each.targets if isinstance(name, ast.Name))


# Modules that travelled are in a folder named by their content, which says nothing to a reader.
_SENT_SOURCES = re.compile(rf'File "[^"]*/{layout.SOURCES}/[0-9a-f]{{64}}/')
_NAMED_FILE = re.compile(r'File "([^"\n]+)"(?=, line \d)')


def own_files(text: str) -> str:
    """Return `text` with the user's own modules and notebook cells named as on this machine."""
    return _NAMED_FILE.sub(_as_cell, _SENT_SOURCES.sub('File "', text))


def _as_cell(named: re.Match[str]) -> str:
    """Return `Cell In[6]`, as IPython's tracebacks name the file of a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    label, number = (name_of(named[1]) if name_of else None) or ("", "")
    return f"{label} {number}" if number else named[0]
