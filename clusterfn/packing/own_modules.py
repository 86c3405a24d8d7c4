"""Find the user's own modules, which of their files may be sent, and which were edited since their import.

The user's own are those outside the standard library and site-packages: next to the script or notebook, below the
project's root, on PYTHONPATH, or editable. Nothing is executed or imported here.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from clusterfn.packing.files import holds_credentials

MAX_DATA_FILE = 1 << 20
# A folder that has no Python file among so many entries holds data.
_LOOKED_AT = 20_000
_PACKAGES = frozenset(["site-packages", "dist-packages"])
_EXTENSIONS = (".so", ".pyd", ".dylib")
_LEFT_OUT = frozenset(["__pycache__", "node_modules", "build", "dist"])
# The bridge brings clusterfn and cloudpickle, and the script itself is pickled by value.
_NEVER = frozenset(["__main__", "__mp_main__", "clusterfn", "_clusterfn", "_clusterfn_wire", "cloudpickle"])
_seen: dict[Path, tuple[int, int]] = {}
_reported: set[tuple[Path, tuple[int, int]]] = set()
# The modules that were not imported from the file that there is now, as `edited` has found.
differing: set[str] = set()
# What looks like a key or a password, and was left out.
withheld: set[Path] = set()
# Data files that were left out.
too_large: set[Path] = set()


def is_own(name: str) -> bool:
    """Whether a module (by its name) is one of the user's own, which travel as source."""
    return bool(_locations(name.partition(".")[0]))


def _locations(name: str) -> list[Path]:
    """Return the file of a module, or the folders of a package, if it is the user's own."""
    if name in _NEVER or name in sys.builtin_module_names:
        return []
    spec = find_spec(name)
    if spec is None:
        return []
    places: list[str] = []
    if spec.submodule_search_locations is not None:
        places = list(spec.submodule_search_locations)
        # Without an __init__.py, any folder of that name counts as a package, such as ./wandb with the logs of runs.
        if not spec.has_location:
            places = [place for place in places if _holds_code(place)]
    elif spec.origin and spec.has_location:
        places = [spec.origin]
    paths = (Path(place) for place in places if not _is_of_python(place))
    return [path for path in paths if not _is_foreign_place(path) and path.exists()]


def _holds_code(folder: str) -> bool:
    """Return whether an import finds a module in this folder, or in one below it that an import can name."""
    left = _LOOKED_AT
    for _, folders, names in os.walk(folder):
        if any(name.endswith((".py", *_EXTENSIONS)) for name in names):
            return True
        folders[:] = sorted(name for name in folders if name.isidentifier() and name not in _LEFT_OUT)
        left -= len(names) + len(folders)
        # The folder may hold millions of data files, and this runs at each import of a namespace package.
        if left < 0:
            return False
    return False


@functools.lru_cache(maxsize=1024)
def _is_of_python(place: str) -> bool:
    """Whether it is in the standard library. Unlike a package, that never becomes a link to a checkout."""
    library = sysconfig.get_path("stdlib") + os.sep
    return place.startswith(library) and _PACKAGES.isdisjoint(place.split(os.sep))


# The places are kept as modules name them, because each call of a function looks at the same ones.
_foreign_places: set[Path] = set()


def _is_foreign_place(place: Path) -> bool:
    """Whether what is there is not the user's own. A package may become a link to a checkout at any time."""
    is_link = place.is_symlink()
    if place in _foreign_places and not is_link:
        return True
    is_foreign = _is_foreign(os.path.realpath(place))
    if is_foreign and not is_link and place.is_absolute():
        _foreign_places.add(place)
    return is_foreign


@functools.lru_cache(maxsize=1024)
def _is_foreign(real: str) -> bool:
    parts = Path(real).parts
    if not _PACKAGES.isdisjoint(parts):
        return True
    return any(real == folder or real.startswith(folder + os.sep) for folder in _foreign_folders())


@functools.lru_cache(maxsize=1)
def _foreign_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({os.path.realpath(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")})


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return how Python would import a module, or has imported it; None if there is none."""
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    if loaded is not None:
        return spec
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def source_files(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of an own module that may be sent: the name that each has on a path of imports, and where it is.

    Compiled extensions are among them: who asks decides what goes with them.
    """
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
    # Links may also lead to each other.
    real = folder.resolve()
    return not any(above.resolve().is_relative_to(real) for above in folder.parents)


def travels(path: Path) -> bool:
    # An editor's lock is a link that leads nowhere.
    if path.suffix in (".pyc", ".pyo") or not path.is_file():
        return False
    if path.suffix == ".py" or is_compiled(path):
        return True
    if holds_credentials(path):
        withheld.add(path)
        return False
    if path.stat().st_size > MAX_DATA_FILE:
        too_large.add(path)
        return False
    return True


def is_compiled(path: Path) -> bool:
    return path.name.endswith(_EXTENSIONS)


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
            # The byte code file has the time and size of the source that was imported, even if the source was edited
            # before this look.
            compiled = _compiled_from(name)
            before = _seen.setdefault(path, now)
            # A byte code file has 32 bits for each.
            in_byte_code = (int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF)
            is_new = before != now if compiled is None else compiled != in_byte_code
            # Without a byte code file, nothing says whether the module was loaded again since.
            if is_new:
                differing.add(name)
            elif compiled is not None:
                differing.discard(name)
            if is_new and (path, now) not in _reported:
                _reported.add((path, now))
                changed.append(name)
            _seen[path] = now
    return changed


def _module_file(name: str) -> Path | None:
    origin = getattr(sys.modules.get(name), "__file__", None)
    return Path(origin) if origin and is_own(name) and Path(origin).exists() else None


def _compiled_from(name: str) -> tuple[int, int] | None:
    """Return time and size of the source that a module's byte code file was made from."""
    cached = getattr(sys.modules[name].__spec__, "cached", None)
    # Python that writes no byte code may have left an old file there.
    if not cached or sys.dont_write_bytecode:
        return None
    try:
        with Path(cached).open("rb") as file:
            magic, flags, mtime, size = struct.unpack("<4sIII", file.read(16))
    except (OSError, struct.error):
        return None
    return (mtime, size) if magic == importlib.util.MAGIC_NUMBER and not flags else None
