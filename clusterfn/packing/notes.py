"""What a user should know of a call before it is sent: the notes of `config.notes` that are true of it.

They are found while the call is packed, and each is said once.
"""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import re
import struct
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.attributes import attribute
from clusterfn.config.environment_kinds import is_set_by_clusterfn
from clusterfn.config.notes import CallNote, found
from clusterfn.display import console
from clusterfn.hosts import serialization
from clusterfn.packing import code_facts, code_notes
from clusterfn.packing.files import holds_credentials
from clusterfn.packing.project import modules as own_modules

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec
    from clusterfn.hosts.bridge_bundle import FileBundle
    from clusterfn.packing.dependencies import Place
    from clusterfn.packing.files import FileUpload

_VARIABLE_SETTERS = frozenset(["putenv", "setdefault", "update"])
# Most functions are sent often, so what was noted about their code is kept.
_of_code: weakref.WeakKeyDictionary[types.FunctionType, list[CallNote]] = weakref.WeakKeyDictionary()


# With these, code can set names that it does not name. What an object does to itself is left out.
_DYNAMIC = re.compile(
    rb"\b(?:__globals__|__setattr__|exec|f_globals|f_locals|globals|locals|setattr|vars)\b(?!\(self\b)"
    rb"|(?<!self\.)\b__dict__\b|\bpatch(?:\.\w+)?\(|\bimport\s*\(?\s*\*"
)
_DYNAMIC_NAMES = frozenset(["__dict__", "exec", "globals", "setattr", "vars"])
# Time and size of each file at the last look.
_seen: dict[Path, tuple[int, int]] = {}


class Watched:
    """What notes are about, as the pickling of a call comes to it; `payload.Needs` watches that.

    Attributes:
        texts: The sources of functions by the names of their files.
        by_value: The functions that are sent by value.
    """

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self.sent_along: dict[CallNote, None] = {}
        self.of_code: Sequence[CallNote] = ()
        self.shipments: dict[tuple[str, str], FileUpload] = {}
        self.texts: dict[str, str] = {}
        self.by_value: list[types.FunctionType] = []
        # The list is the pickler's own and may have sentences about an earlier call.
        serialization.part("pickler").notes.clear()


def tell(notes: Sequence[CallNote], job: JobSpec, is_in_place: bool) -> None:
    """Say what is true of the job, and has not been said; `is_in_place` as in `sending`."""
    # A line that names a variable may set it. Only the host knows what its modules and its profile set.
    lines = "\n".join((*job.host.setup, *job.host.prolog))
    given = {*job.env, *job.secrets, *re.findall(r"\w+", lines)}
    for note in notes:
        has_variable = note.id == "variable" and (job.host.is_this_machine or note.about in given)
        if not has_variable and not (note.id == "compiled" and is_in_place):
            console.note(note)


def of_code(function: Callable[..., Any], constants: Mapping[str, Any] | None) -> list[CallNote]:
    """Return what `code_notes.find` does; raise what it does."""
    if not isinstance(function, types.FunctionType) or constants is not None:
        return code_notes.find(function, constants)
    if function not in _of_code:
        _of_code[function] = code_notes.find(function)
    return _of_code[function]


def find(call: Watched, sources: FileBundle | None, compiled: tuple[own_modules.Compiled, ...]) -> Iterator[CallNote]:
    """Yield the notes about a call that has been packed."""
    yield from (*call.sent_along, *call.of_code)
    yield from (found("argument", text, said=text) for text in serialization.part("pickler").notes)
    yield from (found("compiled", name=module.name, file=module.extension.name) for module in compiled)
    folders = (item for item in call.shipments.values() if item.is_directory)
    paths = (member.path for folder in folders for member in folder.contents.files)
    yield from (found("key", path, path=path) for path in paths if holds_credentials(path))
    if sources:
        yield from of_modules(sources, call.by_value, call.place)
    if call.place is not None and (call.by_value or sources):
        yield from (found("variable", name, name=name) for name in _variables(call.by_value, sources))


def _variables(functions: Collection[types.FunctionType], sources: FileBundle | None) -> tuple[str, ...]:
    """Return the names of variables that this program has set and the call may use, but does not set itself.

    A job has the variables of its host, of `env=` and of `secrets=`. A library sets variables too, so only those count
    that the user's own code names.
    """
    before = _at_start()
    names = tuple(sorted(name for name, value in os.environ.items() if before.get(name) != value))
    # A program that has given itself a title has overwritten what the system shows.
    if not names or before.keys().isdisjoint(os.environ):
        return ()
    script = attribute(sys.modules["__main__"], "__file__") or ""
    texts = own_modules.texts_in(sources) if sources else ()
    return _missed(names, tuple(function.__code__ for function in functions), texts, script)


@functools.lru_cache(maxsize=1)
def _at_start() -> dict[str, str]:
    """Return the variables with which this process began; {} if the system does not show them."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if b"=" in entry)


# Searching all sources at each call of a session would take a quarter of its time.
@functools.lru_cache(maxsize=256)
def _missed(
    names: tuple[str, ...], functions: tuple[types.CodeType, ...], texts: tuple[bytes, ...], script: str
) -> tuple[str, ...]:
    parts = [part for code in functions for part in code_facts.read(code)]
    program = "".join(linecache.getlines(script)).encode()
    used = (name for name in names if _is_missed(name, parts, texts, program))
    return tuple(name for name in used if not is_set_by_clusterfn(name))


def _is_missed(name: str, parts: Collection[code_facts.Facts], texts: Collection[bytes], program: bytes) -> bool:
    """Whether the call may use the variable, and nothing that is sent may set it."""
    word = os.fsencode(name)
    near = [text for text in texts if word in text]
    using = [part for part in parts if name in part.constants]
    if not near and not using and word not in program:
        return False
    quoted = rb"""(['"])%b\1""" % re.escape(word)
    sets = re.compile(rb"(?:environ\s*\[|putenv\(|setdefault\()\s*%b\s*(?:,|\]\s*=(?!=))" % quoted)
    may_set = any(name in part.keys or not _VARIABLE_SETTERS.isdisjoint(part.names) for part in using)
    if may_set or any(map(sets.search, near)):
        return False
    return bool(using) or any(re.search(quoted, text) for text in near) or sets.search(program) is not None


def of_modules(
    sources: FileBundle, functions: Collection[types.FunctionType], place: Place | None
) -> Iterator[CallNote]:
    """Yield which of the user's own modules were edited since their import, and which of their variables were set here.

    A job imports the files again: docs/decisions/0069-changed-modules.md says why changes are not sent. Of what was
    set, only numbers, strings and tuples count, and only if the code that is sent names them and does not set them. A
    job without a new name has an error.

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
    kept = [name for name in names if name not in edits and not goes_by_value(name)]
    changes = [(name, key) for name in kept for key in _changed(name)]
    if changes:
        texts = own_modules.texts_in(sources)
        parts = [(function, part) for function in functions for part in code_facts.read(function.__code__)]
        missed = [change for change in changes if _is_unsent(*change, texts, parts)]
        yield from (found("module-value", f"{name}.{key}", name=f"{name}.{key}", module=name) for name, key in missed)


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


def _changed(name: str) -> Iterator[str]:
    """Yield the names of a module whose values are not those that importing the module gives them."""
    module, path = sys.modules.get(name), _file(name)
    # A module of a class of its own may compute what it has.
    if type(module) is not types.ModuleType or path is None or path.suffix != ".py" or not path.exists():
        return
    for key, there in code_facts.of_file(str(path), path.stat().st_mtime_ns).literals.items():
        here = vars(module).get(key, there)
        if code_facts.is_simple(here) and here != there:
            yield key


def _is_unsent(
    module: str, name: str, texts: Collection[bytes], parts: Collection[tuple[types.FunctionType, code_facts.Facts]]
) -> bool:
    """Whether the call may read what was changed, and nothing that is sent may set it."""
    for _, part in parts:
        if name in (*part.globals, *part.attributes) or _DYNAMIC_NAMES.intersection(part.names):
            return False
    if any(_DYNAMIC.search(text) or name in code_facts.of_text(text).attributes for text in texts):
        return False
    # The module itself names it once, where it sets it.
    word = re.compile(rb"\b%b\b" % name.encode())
    is_read = sum(len(word.findall(text)) for text in texts) > 1
    return is_read or any(_reads(function, part, module, name) for function, part in parts)


def _reads(function: types.FunctionType, part: code_facts.Facts, module: str, name: str) -> bool:
    scope = function.__globals__
    # A variable of the script with the same name has its own value.
    is_own = name in scope and not any(scope.get(global_name) is sys.modules[module] for global_name in part.names)
    return name in part.names and not is_own
