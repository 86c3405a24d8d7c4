"""What a user should know of a call before it is sent: the notes of `config.notes` that are true of it.

They are found while the call is packed, and each is said once.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
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
from clusterfn.packing import code_facts, code_notes, module_notes
from clusterfn.packing.files import holds_credentials
from clusterfn.packing.project import modules as own_modules

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec
    from clusterfn.hosts.bridge_bundle import FileBundle
    from clusterfn.packing.dependencies import Place
    from clusterfn.packing.files import FileUpload

_VARIABLE_SETTERS = frozenset(["putenv", "setdefault", "update"])
# Most functions are sent often, so what was noted about their code is kept for each host.
_of_code: weakref.WeakKeyDictionary[types.FunctionType, dict[str, list[CallNote]]] = weakref.WeakKeyDictionary()
# The method of `type` itself is used, because a metaclass may have another one.
_subclasses_of: Callable[[type], list[type]] = type.__subclasses__


class Watched:
    """What notes are about, as the pickling of a call comes to it; `payload.Needs` watches that.

    Attributes:
        flags: Names that are None or a bool, with the file and the globals of the function that uses them.
        texts: The sources of functions by the names of their files.
        by_value: The functions that are sent by value.
        classes: Those of the script.
    """

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self.sent_along: dict[CallNote, None] = {}
        self.of_code: Sequence[CallNote] = ()
        self.shipments: dict[tuple[str, str], FileUpload] = {}
        self.texts: dict[str, str] = {}
        self.by_value: list[types.FunctionType] = []
        self.classes: list[type] = []
        self.flags: dict[str, tuple[object, str, Mapping[str, Any]]] = {}
        # The list is the pickler's own and may have sentences about an earlier call.
        serialization.part("pickler").notes.clear()


def tell(notes: Sequence[CallNote], job: JobSpec, is_in_place: bool) -> None:
    """Say what is true of the job, and has not been said.

    Args:
        is_in_place: As `submit.is_in_place`.
    """
    # A line that names a variable may set it. Only the host knows what its modules and its profile set.
    lines = "\n".join((*job.host.setup, *job.host.prolog))
    given = {*job.env, *job.secrets, *re.findall(r"\w+", lines)}
    for note in notes:
        has_variable = note.id == "variable" and (job.host.is_this_machine or note.about in given)
        if not has_variable and not (note.id == "compiled" and is_in_place):
            console.note(note)


def of_code(function: Callable[..., Any], host: str, constants: Mapping[str, Any] | None) -> list[CallNote]:
    """Return what `code_notes.find` does; raise what it does."""
    read: dict[str, list[CallNote]] = {}
    if isinstance(function, types.FunctionType) and constants is None:
        read = _of_code.setdefault(function, {})
    if host not in read:
        read[host] = code_notes.find(function, host, constants)
    return read[host]


def find(call: Watched, sources: FileBundle | None, compiled: tuple[own_modules.Compiled, ...]) -> Iterator[CallNote]:
    """Yield the notes about a call that has been packed."""
    yield from _decided_here(call)
    yield from _unnamed_subclasses(call)
    yield from (*call.sent_along, *call.of_code)
    yield from (found("argument", text, said=text) for text in serialization.part("pickler").notes)
    yield from (found("compiled", name=each.name, file=each.extension.name) for each in compiled)
    folders = (each for each in call.shipments.values() if each.is_directory)
    paths = (member.path for each in folders for member in each.contents.files)
    yield from (found("key", path, path=path) for path in paths if holds_credentials(path))
    if sources:
        yield from module_notes.find(sources, call.by_value, call.place)
    if call.place is not None and (call.by_value or sources):
        yield from (found("variable", name, name=name) for name in _variables(call.by_value, sources))


def _decided_here(call: Watched) -> Iterator[CallNote]:
    """Yield what the function would find otherwise on the host, as its module was run on this machine only."""
    for name, (value, file, scope) in call.flags.items():
        # A notebook keeps the text of its cells in `In`.
        cells = [each for each in scope.get("In") or () if isinstance(each, str)]
        guards = (code_facts.of_text(text).guards.get(name) for text in (call.texts.get(file, ""), *cells))
        missing = (
            module
            for guard in guards if guard and (value is guard.value) is guard.is_fallback
            for module in guard.modules if module not in sys.modules and own_modules.find_spec(module) is None
        )  # fmt: skip
        yield from (found("optional-import", name=name, value=value, module=each) for each in [*missing][:1])


def _unnamed_subclasses(call: Watched) -> Iterator[CallNote]:
    """Yield which classes of the script the call would find by `__subclasses__()` here, but not in the job."""
    parts = (part for each in call.by_value for part in code_facts.read(each.__code__)) if call.classes else ()
    if not any("__subclasses__" in part.names for part in parts):
        return
    sent = set(map(id, call.classes))
    below = (each for cls in call.classes for each in _subclasses_of(cls) if id(each) not in sent)
    missing = {each.__name__ for each in below if attribute(each, "__module__") == "__main__"}
    if missing:
        yield found("subclasses", names=", ".join(sorted(missing)))


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
    return _missed(names, tuple(each.__code__ for each in functions), texts, script)


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
) -> tuple[str, ...]:  # fmt: skip
    parts = [part for each in functions for part in code_facts.read(each)]
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
