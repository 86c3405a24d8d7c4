"""Notes on the user's own modules: their files were edited since their import here, or this process has set what a job,
which imports the files again, finds otherwise.

Of what was set, only numbers, strings and tuples count, and only if the call may read them and nothing that is sent may
set them; a job without a new name has an error. docs/decisions/0069-changed-modules.md says why changes are not sent.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import struct
import sys
import types
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge.attributes import attribute
from clusterfn.config.notes import CallNote, found
from clusterfn.hosts import serialization
from clusterfn.packing import code_facts
from clusterfn.packing.project import modules as own_modules

if TYPE_CHECKING:
    from clusterfn.hosts.bridge_bundle import FileBundle
    from clusterfn.packing.dependencies import Place

_NUMBERS = (bool, int, float, complex)
# With these, code can set names that it does not name. The last one makes globals of the members of an enumeration.
_SETTERS = (
    "__globals__", "__setattr__", "_convert_", "delattr", "exec", "f_globals", "f_locals", "globals", "locals",
    "setattr", "vars",
)  # fmt: skip
_DYNAMIC_NAMES = frozenset([*_SETTERS, "__dict__", "patch"])
# What an object does to itself is left out.
_DYNAMIC_TEXT = re.compile(
    rf"\b(?:{'|'.join(_SETTERS)})\b(?!\(self\b)|(?<!self\.)\b__dict__\b|\bpatch(?:\.\w+)?\(".encode()
)
_TAKES_ALL = re.compile(rb"\bimport\s*\(?\s*\*")
# Values of such names are not shown.
_PRIVATE = re.compile(r"pass|secret|token|key|pin(?![a-z])|code", re.IGNORECASE)
# More changes were made by a program.
_MOST = 20
# Time and size of each file at the last look.
_seen: dict[Path, tuple[int, int]] = {}


def find(sources: FileBundle, functions: Collection[types.FunctionType], place: Place | None) -> Iterator[CallNote]:
    """Yield the notes on modules.

    Args:
        sources: The files of those that are sent.
        functions: Those that are sent by value.
        place: Where they go; None if that is not known.
    """
    names = own_modules.modules_in(sources)
    edits = {name: now for name in names for now in _edits(name)}
    # A worker of a session keeps the modules that it has.
    if place is None or not place.in_session:
        yield from (found("edited", now, name=name) for name, now in edits.items())
    if place is None:
        return
    # The functions that use a module by value have its changes.
    goes_by_value = serialization.part("classes").goes_by_value
    try:
        changes = [each for name in names if name not in edits and not goes_by_value(name) for each in _changes(name)]
        missed = [each for each in changes if _is_missed(each, sources, functions)] if len(changes) <= _MOST else []
    except Exception:  # noqa: BLE001 - the user's modules and values, whose code may raise anything
        return
    for each in missed:
        # The sentence has the value, which may be another one at each call.
        yield found("module-value", f"{each.module}.{each.name}", difference=each.describe(), module=each.module)


def _edits(name: str) -> Iterator[str]:
    """Yield what names the change if the file of a module has changed since it was imported here.

    What was imported is read from Python's own byte code file; where there is none, from the first look.
    """
    path = _file(name)
    if path is not None and path.exists() and own_modules.is_own(name):
        facts = path.stat()
        now = facts.st_mtime_ns, facts.st_size
        before = _seen.setdefault(path, now)
        compiled = _compiled_from(name)
        # A byte code file has 32 bits for each, of the source that was imported, even if that was edited before this
        # look.
        in_byte_code = int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF
        if (before != now) if compiled is None else (compiled != in_byte_code):
            yield f"{path} {now}"


def _file(name: str) -> Path | None:
    file = attribute(sys.modules.get(name), "__file__")
    return Path(file) if file else None


def _compiled_from(name: str) -> tuple[int, int] | None:
    """Return time and size of the source that a module's byte code file was made from."""
    cached = attribute(attribute(sys.modules[name], "__spec__"), "cached")
    # Python that writes no byte code may have left an old file there.
    if not cached or sys.dont_write_bytecode:
        return None
    try:
        with Path(cached).open("rb") as file:
            magic, flags, mtime, size = struct.unpack("<4sIII", file.read(16))
    except (OSError, struct.error):
        return None
    return (mtime, size) if magic == importlib.util.MAGIC_NUMBER and not flags else None


class _Change(NamedTuple):
    """A name of a module whose value `here` is not the one that importing the module gives it."""

    module: str
    name: str
    path: Path
    here: object
    there: object

    def describe(self) -> str:
        """Say what the job finds. A string may be a password, so only numbers are shown."""
        key = f"{self.module}.{self.name}"
        if not _PRIVATE.search(self.name) and all(type(value) in _NUMBERS for value in (self.here, self.there)):
            return f"{key} is {self.here!r} on this machine, and {self.there!r} in the job"
        return f"{key} was changed on this machine, but not in the job"


def _changes(name: str) -> Iterator[_Change]:
    module, path = sys.modules.get(name), _file(name)
    # A module of a class of its own may compute what it has.
    if type(module) is not types.ModuleType or path is None or path.suffix != ".py":
        return
    scope = vars(module)
    for key, there in code_facts.of_file(str(path), path.stat().st_mtime_ns).literals.items():
        if key in scope and scope[key] is not there and not _is_same(scope[key], there):
            yield _Change(name, key, path, scope[key], there)


def _is_same(here: Any, there: Any) -> bool:
    """Whether a value is that of the source. It calls no code of the user's."""
    if type(there) in _NUMBERS and (type(here) in _NUMBERS or type(here).__module__ == "numpy"):
        return bool(here == there)
    if type(there) is tuple:
        return type(here) is tuple and len(here) == len(there) and all(map(_is_same, here, there))
    # A float of NumPy is a float, too.
    kind: Any = type(there)
    return issubclass(type(here), kind) and kind.__eq__(here, there) is True


def _is_missed(change: _Change, sources: FileBundle, functions: Collection[types.FunctionType]) -> bool:
    """Whether the call may read what was changed, and nothing that is sent may set it."""
    parts = [part for function in functions for part in code_facts.read(function.__code__)]
    stores = {store.name for part in parts for store in part.stores if store.kind != "NAME"}
    if change.name in stores or any(_DYNAMIC_NAMES.intersection(part.names) for part in parts):
        return False
    own, texts = change.path.read_bytes(), own_modules.texts_in(sources)
    is_read = _is_read(own, change.module, change.name, repr(change.there), texts)
    return is_read is not None and (is_read or any(_reads(function, change) for function in functions))


def _reads(function: types.FunctionType, change: _Change) -> bool:
    names = {name for part in code_facts.read(function.__code__) for name in part.names}
    scope = function.__globals__
    # A variable of the script with the same name has its own value.
    is_own = change.name in scope and not any(scope.get(each) is sys.modules[change.module] for each in names)
    return change.name in names and not is_own


@functools.lru_cache(maxsize=1024)
def _is_read(own: bytes, module: str, name: str, there: str, texts: tuple[bytes, ...]) -> bool | None:
    """Whether sources that are sent read a name of a module; None if they may set it.

    Args:
        own: The source of the module.
        there: The value in it, as text.
    """
    others = [data for data in texts if data != own]
    naming = [own, *(data for data in others if name.encode() in data)]
    if _TAKES_ALL.search(own) or any(map(_DYNAMIC_TEXT.search, [own, *others])):
        return None
    try:
        with warnings.catch_warnings():
            # The import has shown what Python warns of.
            warnings.simplefilter("ignore")
            read = [code_facts.read(compile(data, "", "exec", dont_inherit=True)) for data in naming]
    except (SyntaxError, ValueError):
        return None
    values = [repr(store.value) for part in read[0] for store in part.stores if store.name == name]
    stores = [store[:2] for parts in read[1:] for part in parts for store in part.stores]
    if ("ATTR", name) in stores or values != [there]:
        return None
    last = module.rpartition(".")[2].encode()
    knowing = (parts for data, parts in zip(naming, read) if data is own or last in data)
    return any(name in part.reads for parts in knowing for part in parts)
