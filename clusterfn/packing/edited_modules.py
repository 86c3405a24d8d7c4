"""Find which of the user's own modules were edited since their import."""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from clusterfn.packing.project.modules import is_own

# Time and size of each file at the last look.
_seen: dict[Path, tuple[int, int]] = {}
# The modules that were not imported from the file that there is now, as `edited` has found.
differing: set[str] = set()


def edited(imported: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the modules whose file has changed since it was imported here, and what names the change.

    What was imported is read from Python's own byte code file; where there is none, from the first look.
    """
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
            if is_new:
                yield name, f"{path} {now}"


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
