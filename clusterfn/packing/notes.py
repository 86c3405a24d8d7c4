"""Notes: what a user should know of a call before it is sent, as its job lacks it or finds it otherwise.

They are found while the call is packed, and each is said once.
"""

from __future__ import annotations

import re
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge.attributes import attribute
from clusterfn.display import console
from clusterfn.hosts import serialization
from clusterfn.packing import code_facts, edited_modules, inner_calls, unsent_changes
from clusterfn.packing.by_name import goes_by_value
from clusterfn.packing.files import holds_credentials
from clusterfn.packing.project import modules as own_modules

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec
    from clusterfn.hosts.bridge_bundle import FileBundle
    from clusterfn.packing.dependencies import Place
    from clusterfn.packing.files import FileUpload

# Kinds of notes. Those of `_PROGRESS` are not said in quiet mode.
ARGUMENT, CHANGED, COMPILED, CREDENTIAL = "argument", "changed", "compiled", "credential"
DECIDED, EDITED, VARIABLE = "decided", "edited", "variable"
_PROGRESS = (ARGUMENT, COMPILED, DECIDED)
# Most functions are sent often, so what was noted about their code is kept for each host.
_of_code: weakref.WeakKeyDictionary[types.FunctionType, dict[str, list[str]]] = weakref.WeakKeyDictionary()
# The method of `type` itself is used, because a metaclass may have another one.
_subclasses_of: Callable[[type], list[type]] = type.__subclasses__


class Note(NamedTuple):
    """A sentence about a call, which is said once for each thing that it is about."""

    kind: str
    about: str
    text: str


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
        self.sent_along: list[str] = []
        self.of_code: Sequence[str] = ()
        self.shipments: dict[tuple[str, str], FileUpload] = {}
        self.texts: dict[str, str] = {}
        self.by_value: list[types.FunctionType] = []
        self.classes: list[type] = []
        self.flags: dict[str, tuple[object, str, Mapping[str, Any]]] = {}
        # The list is the pickler's own and may have sentences about an earlier call.
        serialization.part("pickler").notes.clear()


def tell(notes: tuple[Note, ...], job: JobSpec, is_in_place: bool) -> None:
    """Say what is true of the job, and has not been said.

    Args:
        is_in_place: As `submit.is_in_place`.
    """
    # A line that names a variable may set it. Only the host knows what its modules and its profile set.
    lines = "\n".join((*job.host.setup, *job.host.prolog))
    given = {*job.env, *job.secrets, *re.findall(r"\w+", lines)}
    for note in notes:
        has_variable = note.kind == VARIABLE and (job.host.is_this_machine or note.about in given)
        if not has_variable and not (note.kind == COMPILED and is_in_place) and console.is_new(note.kind, note.about):
            (console.tell if note.kind in _PROGRESS else console.warn)(note.text)


def of_code(function: Callable[..., Any], host: str, constants: Mapping[str, Any] | None) -> list[str]:
    """Return what `inner_calls.notes` does; raise what it does."""
    read: dict[str, list[str]] = {}
    if isinstance(function, types.FunctionType) and constants is None:
        read = _of_code.setdefault(function, {})
    if host not in read:
        read[host] = inner_calls.notes(function, host, constants)
    return read[host]


def find(call: Watched, sources: FileBundle | None, compiled: tuple[own_modules.Compiled, ...]) -> Iterator[Note]:
    """Yield the notes about a call that has been packed."""
    decided = (*_decided_here(call), *_unnamed_subclasses(call), *call.sent_along, *call.of_code)
    yield from (Note(DECIDED, text, text) for text in decided)
    yield from (Note(ARGUMENT, text, f"in the arguments {text}") for text in serialization.part("pickler").notes)
    for each in compiled:
        text = (
            f"{each.name} is not sent, because {each.extension.name} is compiled for this machine: the job imports it "
            "from its environment"
        )
        yield Note(COMPILED, text, text)
    folders = (each for each in call.shipments.values() if each.is_directory)
    for path in (member.path for each in folders for member in each.contents.files):
        if holds_credentials(path):
            yield Note(CREDENTIAL, path, f"{path} looks like a key or a password, and is sent with its Directory")
    names = own_modules.modules_in(sources) if sources else ()
    for name, stamp in edited_modules.edited(names):
        text = f"{name} has changed since this process imported it; the job gets the current file"
        # A worker of a session keeps the modules that it has.
        if call.place is None or not call.place.in_session:
            yield Note(EDITED, stamp, text)
    if call.place is None:
        return
    if sources:
        # The functions that use a module by value have its changes.
        changed = unsent_changes.find([name for name in names if not goes_by_value(name)], sources, call.by_value)
        # The sentence has the value, which may be another one at each call.
        yield from (Note(CHANGED, name, text) for name, text in changed.items())
    for name in unsent_changes.variables(call.by_value, sources) if call.by_value or sources else ():
        yield Note(
            VARIABLE,
            name,
            (
                f"{name} is set by this program, and its value is not sent to the job: write "
                f"env={{{name!r}: os.environ[{name!r}]}} in @cluster, or secrets=[{name!r}] if it is private"
            ),
        )


def _decided_here(call: Watched) -> Iterator[str]:
    """Yield what the function would find otherwise on the host, as its module was run on this machine only."""
    for name, (value, file, scope) in call.flags.items():
        # A notebook keeps the text of its cells in `In`.
        cells = [each for each in scope.get("In") or () if isinstance(each, str)]
        guards = (own_modules.guarded(text).get(name) for text in (call.texts.get(file, ""), *cells))
        missing = next((module for each in guards if each and (module := each.missing(value))), "")
        if missing:
            yield (
                f"{name} is {value!r} in the job, because this machine has no {missing}; to decide it on the "
                "host, set it inside the function, or move the function into a module of its own"
            )


def _unnamed_subclasses(call: Watched) -> Iterator[str]:
    """Yield which classes of the script the call would find by `__subclasses__()` here, but not in the job."""
    parts = (part for each in call.by_value for part in code_facts.read(each.__code__)) if call.classes else ()
    if not any("__subclasses__" in part.names for part in parts):
        return
    sent = set(map(id, call.classes))
    below = (each for cls in call.classes for each in _subclasses_of(cls) if id(each) not in sent)
    missing = {each.__name__ for each in below if attribute(each, "__module__") == "__main__"}
    if missing:
        yield (
            f"__subclasses__() does not find {', '.join(sorted(missing))} in the job, because the code of the call "
            "does not name that: name it in the function, or move the classes into a module"
        )
