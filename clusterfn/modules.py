"""Which of the user's own modules a call needs, and their source.

The user's own are those outside the standard library and outside site-packages: beside the script or notebook, below
the project's root, on PYTHONPATH, or installed as editable. Whole top-level packages travel, with what they import
in turn. Nothing is executed or imported here. Called by `payload`.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from clusterfn.errors import PayloadError
from clusterfn.parcel import Parcel, make

_MAX_DATA_FILE = 1 << 20
_MAX_ALL = 50 << 20
_EXTENSIONS = (".so", ".pyd", ".dylib")
# Made by the worker, or in the bridge, on every host.
_NEVER = frozenset(["__main__", "__mp_main__", "clusterfn", "_clusterfn_wire"])
_LEFT_OUT = frozenset(["__pycache__", "node_modules", "build", "dist"])
_STDLIB: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset())  # Python 3.10 and up
_seen_mtimes: dict[Path, int] = {}


def sources(names: Iterable[str]) -> Parcel | None:
    """The files of the user's own modules among `names` and of those that they import; None if there are none.

    Args:
        names: Names of modules; only the part before the first dot matters.

    Raises:
        PayloadError: A compiled extension is among them, or they are larger than 50 MB.
    """
    waiting, done, files = {name.partition(".")[0] for name in names}, set(), {}
    while waiting:
        name = waiting.pop()
        done.add(name)
        for relative, path in _members(name):
            files[relative] = path
            waiting |= _imports(path) - done
    if not files:
        return None
    _check(files)
    return make({relative: path.read_bytes() for relative, path in files.items()})


def edited(names: Iterable[str]) -> list[str]:
    """Those of the user's own modules whose file changed since it was first sent from this process."""
    changed = []
    for name in sorted(names):
        path = _module_file(name)
        if path is not None:
            mtime = path.stat().st_mtime_ns
            if _seen_mtimes.setdefault(path, mtime) != mtime:
                changed.append(name)
                _seen_mtimes[path] = mtime
    return changed


def is_own(name: str) -> bool:
    """Whether a module (by its name) is one of the user's own, which travel as source."""
    return bool(_locations(name.partition(".")[0]))


def candidates() -> frozenset[str]:
    """Names of the user's own modules that could be imported from the folders on sys.path."""
    found: set[str] = set()
    for folder in _own_folders(tuple(sys.path)):
        found |= _importable(folder)
    return frozenset(found)


@functools.lru_cache(maxsize=8)
def _own_folders(path: tuple[str, ...]) -> tuple[str, ...]:
    folders = [os.path.abspath(entry or ".") for entry in path]
    return tuple(folder for folder in folders if not _is_foreign(folder) and Path(folder).is_dir())


def _importable(folder: str) -> set[str]:
    with os.scandir(folder) as entries:
        names = [(entry.name, entry.is_dir()) for entry in entries]
    return {name if is_dir else name[:-3] for name, is_dir in names if is_dir or name.endswith(".py")}


@functools.lru_cache(maxsize=1)
def _foreign_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({os.path.realpath(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_foreign(path: str) -> bool:
    real = os.path.realpath(path)
    parts = Path(real).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return any(real == folder or real.startswith(folder + os.sep) for folder in _foreign_folders())


def _locations(name: str) -> list[Path]:
    """The file of a module, or the folders of a package, if it is the user's own."""
    if name in _NEVER or name in sys.builtin_module_names:
        return []
    spec = _spec(name)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        places = [Path(place) for place in spec.submodule_search_locations]
    else:
        places = [Path(spec.origin)] if spec.origin and spec.has_location else []
    return [place for place in places if place.exists() and not _is_foreign(str(place))]


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
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(entry for entry in folders if entry not in _LEFT_OUT and not entry.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if _travels(path):
                yield path


def _travels(path: Path) -> bool:
    if path.suffix == ".py" or path.name.endswith(_EXTENSIONS):
        return True
    return path.suffix not in (".pyc", ".pyo") and path.is_file() and path.stat().st_size <= _MAX_DATA_FILE


def _check(files: dict[str, Path]) -> None:
    for relative, path in files.items():
        if path.name.endswith(_EXTENSIONS):
            raise PayloadError(
                f"{relative} is a compiled extension and cannot travel as source",
                evidence=[str(path)],
                hint="install that package in the environment of the job",
            )
    sizes = sorted(((path.stat().st_size, relative) for relative, path in files.items()), reverse=True)
    if sum(size for size, _ in sizes) > _MAX_ALL:
        raise PayloadError(
            f"the modules that the function needs are larger than {_MAX_ALL >> 20} MB",
            evidence=[f"{size / 2**20:8.1f} MB  {relative}" for size, relative in sizes[:5]],
            hint="pass data as clusterfn.File or clusterfn.Directory, or install the package in the environment",
        )


def _imports(path: Path) -> frozenset[str]:
    """The top-level names that a source file imports, wherever in it the import stands."""
    if path.suffix != ".py":
        return frozenset()
    return _parsed_imports(path, path.stat().st_mtime_ns) - _STDLIB


@functools.lru_cache(maxsize=4096)
def _parsed_imports(path: Path, mtime_ns: int) -> frozenset[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return frozenset(found)
