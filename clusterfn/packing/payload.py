"""A call as bytes: the function and its arguments, the modules and files they need, and the large buffers apart.

Everything that cannot travel is found here, before anything is sent, and named by its path. Sends nothing.
"""

from __future__ import annotations

import contextvars
import linecache
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge.attributes import attribute
from clusterfn.config.notes import CallNote, found
from clusterfn.errors import ConfigError, DependencyFailed, PayloadError
from clusterfn.hosts import serialization
from clusterfn.packing import code_facts, notes, unsendable
from clusterfn.packing.dependencies import JobArgument, NotEnded, Place, Reference, reference_of
from clusterfn.packing.files import Directory, File, FileUpload, name_of_buffer, shipment
from clusterfn.packing.project import modules as own_modules
from clusterfn.packing.unsendable import MANAGERS, OPTUNA, CalledWith

if TYPE_CHECKING:
    from clusterfn.hosts.bridge_bundle import FileBundle

_LARGE = 1 << 20
_MAX_SOURCE = 1 << 20
# Objects of these modules' types, such as built-in and decorated functions, name their own module in `__module__`.
_NAMED_ELSEWHERE = ("builtins", "functools", "typing", "typing_extensions", "clusterfn.api.decorator")


class Payload(NamedTuple):
    """One call, ready to travel.

    Attributes:
        data: The content of payload.pkl; b"" for a job that calls nothing, and has no such file.
        blobs: A buffer's name (`name_of`) -> its bytes, which travel by themselves, once.
        crcs: The same name -> its CRC-32: on the host it shows whether the bytes are still the same.
        sources: The user's own modules, or None.
        shipments: Files and Directories among the arguments.
        needs: The top-level names of all modules that the call itself refers to, wherever they come from.
        notes: What will be different there.
        given: "<digest>/<name>" of a shipment -> its path as the caller wrote it, where there is one such path.
        compiled: The user's own modules that are not among `sources`, because they have compiled extensions.
        inputs: The jobs and groups whose values it takes.
        after: The same as `JobSpec.after`.
    """

    data: bytes
    blobs: Mapping[str, memoryview]
    sources: FileBundle | None
    shipments: tuple[FileUpload, ...]
    needs: frozenset[str] = frozenset()
    notes: tuple[CallNote, ...] = ()
    given: Mapping[str, PurePath] = {}
    crcs: Mapping[str, int] = {}
    inputs: tuple[Reference, ...] = ()
    after: Mapping[str, Mapping[str, Any]] = {}
    compiled: tuple[own_modules.Compiled, ...] = ()

    def with_own_buffers(self) -> Payload:
        """Return the same with copies of the large buffers: the caller may change the arrays while they are sent."""
        return self._replace(blobs={digest: memoryview(bytes(view)) for digest, view in self.blobs.items()})


def pack(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    target: tuple[int, int] | None = None,
    imports: Iterable[str] = (),
    place: Place | None = None,
) -> Payload:
    """Pack the call `function(*args, **kwargs)` as bytes.

    Args:
        function: What to call.
        args: With these.
        kwargs: And these.
        target: (major, minor) of the Python that will run it; for another than this one's, code travels as text.
        imports: Modules that it imports in addition to those that its code names.
        place: Where it will run: values of jobs there stay there. None: its arguments may not be jobs.

    Raises:
        PayloadError: Part of it cannot travel; the message says which, by its path.
    """
    keep_registrations()
    apart, needs = Large(), Needs(place)
    needs.read_code(function)
    for name in imports:
        needs.note(name)
    call = (function, tuple(map(apart.of, args)), {name: apart.of(value) for name, value in kwargs.items()})
    packed = pack_object(call, needs, target, (function, args, kwargs))
    names = [name_of_buffer(view) for view in packed.buffers]
    blobs, crcs = {index: digest for index, (digest, _) in enumerate(names)}, dict(names)
    packed = replace(packed, blobs=blobs, crcs=crcs, sources=needs.texts, **of_program())
    buffers = {digest: packed.buffers[index] for index, digest in blobs.items()}
    return needs.as_payload(b"".join(packed.pieces()), buffers, crcs)


def pack_modules(imports: Iterable[str]) -> Payload:
    """Return what a job that calls nothing needs of this machine: these of the user's own modules."""
    needs = Needs()
    for name in imports:
        needs.note(name)
    return needs.as_payload(b"", {}, {})


def of_program() -> dict[str, Any]:
    """Return what of this program, apart from the call, its job finds too: how it logs, and its words.

    The words of a notebook or an interactive session are those of Jupyter or Python, and not of the user.
    """
    argv = sys.argv[1:] if attribute(sys.modules["__main__"], "__file__") else []
    # Some editors give a notebook the `__file__` of its script.
    if "kernel_launcher" in os.path.basename("".join(sys.argv[:1])):
        argv = []
    return {
        "logging": serialization.part("logs").describe(),
        "settings": serialization.part("settings").current(),
        "argv": list(map(str, argv)),
    }


def pack_object(obj: Any, needs: Needs, target: tuple[int, int] | None, call: CalledWith) -> Any:
    """Pickle an object, and note what it needs.

    Args:
        call: The function with its arguments that the object is of; its error names what cannot travel.
    """
    try:
        return serialization.part("container").pack(obj, needs.look, target)
    except (ConfigError, PayloadError, DependencyFailed, NotEnded):
        raise
    except (Exception, SystemExit) as error:  # the user's `__reduce__` may raise anything
        # With inputs in the call, jobs may be among the arguments, and only `look` accepts those.
        raise unsendable.cannot_travel(call, target, error, needs.look if needs.inputs else None) from error


def imports_of(payload: Payload) -> Iterator[str]:
    """Yield the top-level names of modules that a call and its own modules need, and that do not travel."""
    texts = own_modules.texts_in(payload.sources) if payload.sources else ()
    names = payload.needs.union(*(code_facts.of_text(text).imports for text in texts))
    compiled = {module.name.partition(".")[0] for module in payload.compiled}
    yield from (name for name in names if name in compiled or not own_modules.is_own(name))


def keep_registrations() -> None:
    """Send by value what the user registered with cloudpickle, and a child process's copy of __main__."""
    ours = serialization.part("cloudpickle").cloudpickle._PICKLE_BY_VALUE_MODULES
    theirs = sys.modules.get("cloudpickle")
    modules = {"__mp_main__", *(theirs.list_registry_pickle_by_value() if theirs else ())}
    ours.update(modules)
    # The user may have taken back a registration.
    ours.intersection_update(modules)


class Large:
    """Takes large bytes among the arguments apart, so that they are sent once."""

    def __init__(self) -> None:
        self._apart: dict[int, _Apart] = {}

    def of(self, value: Any) -> Any:
        """Return what to pickle instead; the same for the same object, so that it stays one."""
        # Types are compared by identity: a metaclass may define how its classes compare, and that may raise.
        kind = type(value)
        if (kind is not bytes and kind is not bytearray) or len(value) < _LARGE:
            return value
        return self._apart.setdefault(id(value), _Apart(value))


class _Apart:
    """Large bytes as an argument: pickled next to the stream."""

    def __init__(self, value: bytes | bytearray) -> None:
        self._value = value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self._value), (pickle.PickleBuffer(self._value),)


class Needs(notes.Watched):
    """Watches the pickling of one call and notes the modules, files, sources and values of jobs that it needs.

    Args:
        place: Where the call will run; None: its arguments may not be jobs.
    """

    def __init__(self, place: Place | None = None) -> None:
        super().__init__(place)
        self.inputs: dict[str, Reference] = {}
        # The items that are needed of each input; None for all.
        self.items: dict[str, set[int] | None] = {}
        # The id and the item of each reference, in order.
        self.taken: list[tuple[str, int | None]] = []
        self.modules: set[str] = set()
        self.known: set[str] = set()
        self._paths: dict[str, set[PurePath]] = {}

    def as_payload(self, data: bytes, blobs: Mapping[str, memoryview], crcs: Mapping[str, int]) -> Payload:
        """Return the payload of these bytes, with all that was noted for it."""
        sources, compiled = own_modules.collect(self.modules) if self.modules else (None, ())
        names = {job: reference.name for job, reference in self.inputs.items()}
        return Payload(
            data=data,
            blobs=blobs,
            crcs=crcs,
            sources=sources,
            compiled=compiled,
            shipments=tuple(self.shipments.values()),
            inputs=tuple(self.inputs.values()),
            notes=tuple(notes.find(self, sources, compiled)),
            needs=frozenset(name.partition(".")[0] for name in self.known),
            after={job: {"name": names[job], "items": items and sorted(items)} for job, items in self.items.items()},
            # Of files with the same content from two paths, the host cannot tell which was meant.
            given={name: next(iter(paths)) for name, paths in self._paths.items() if len(paths) == 1},
        )

    def read_code(self, function: Callable[..., Any], constants: Mapping[str, Any] | None = None) -> None:
        """Note what the function's code does otherwise in a job; it takes and raises what `code_notes.find` does."""
        if self.place is not None:
            self.of_code = notes.of_code(function, constants)

    def look(self, obj: Any) -> Any:
        # `obj.__class__` may be anything, and may raise.
        kind = type(obj)
        if issubclass(kind, (File, Directory)):
            item = shipment(obj)
            self.shipments[item.digest, item.name] = item
            for name in item.contents.imports:
                self.note(name)
            self._paths.setdefault(f"{item.digest}/{item.name}", set()).add(Path(obj))
            return serialization.part("stand_ins").path_of, (item.digest, item.name)
        if kind is types.FunctionType:
            return self._function(obj)
        if issubclass(kind, JobArgument) and self.place is not None:
            return self._value(reference_of(obj), self.place)
        # Most programs have no such objects, and this sees each object of a call.
        if MANAGERS in sys.modules or OPTUNA in sys.modules:
            unsendable.reject_bound(obj)
        if issubclass(kind, types.ModuleType):
            self.note(obj.__name__)
        else:
            home = attribute(kind, "__module__")
            self.note(home)
            # A context variable does not know its module.
            if kind is contextvars.ContextVar:
                variable_home = serialization.part("standard_library").home_of(obj)
                self.note(variable_home[0] if variable_home else None)
            if home in _NAMED_ELSEWHERE or issubclass(kind, type):
                self.note(attribute(obj, "__module__"))
        return NotImplemented

    def _value(self, reference: Reference, place: Place) -> tuple[Any, ...]:
        """Refer to the value of a job on the same host, or send the value with the call.

        It is sent if the job ran elsewhere, and has ended, or if the call is one of a session.
        """
        references = serialization.part("references")
        if reference.place == place:
            items = self.items.setdefault(reference.id, set())
            self.inputs[reference.id] = reference
            self.taken.append((reference.id, reference.item))
            if reference.item is None or items is None:
                self.items[reference.id] = None
            else:
                items.add(reference.item)
            return references.value_of, (reference.id, reference.item, reference.keys)
        if place.in_session and not reference.source.has_ended():
            raise NotEnded(reference.source)
        if not reference.source.has_ended():
            where, hint = "in a session", "call both on the same host, or wait and pass its value: job.result()"
            if reference.place:
                where = f"on {reference.host}"
            elif reference.source.items_left() is not None:
                # The values of a retried group are in the folders of two groups.
                where, hint = "again after retry_failed()", "wait for it first: group.wait()"
            message = f"{reference.label} is an argument of a call on {place.host}, but runs {where} and has not ended"
            raise PayloadError(message, stage="submit", hint=hint)
        try:
            value = reference.source.value_here(reference.item)
        except Exception as error:  # the function of the other job may raise anything
            message = f"{reference.label} has no value: {type(error).__name__}"
            raise DependencyFailed(message, host=reference.host, job=reference.id, stage="submit") from error
        for key in reference.keys:
            value = value[key]
        why = "a session call cannot read it there" if place.in_session else f"it ran on {reference.host}"
        self.sent_along[found("sent-value", label=reference.label, host=place.host, why=why)] = None
        return references.given, (value,)

    def note(self, name: object) -> None:
        """Note a module that the call refers to; one of the user's own travels."""
        if isinstance(name, str) and name not in self.known:
            self.known.add(name)
            if name.partition(".")[0] in own_modules.NEVER or serialization.part("classes").goes_by_value(name):
                return
            if own_modules.is_own(name):
                self.modules.add(name)

    def _function(self, function: types.FunctionType) -> Any:
        by_name = serialization.part("classes").found_by_name(function)
        if by_name is None:
            self._by_value(function)
            return NotImplemented
        self.note(function.__module__)
        if by_name is function:
            return NotImplemented
        return serialization.part("stand_ins").plain_by_name, (function.__module__, function.__qualname__)

    def _by_value(self, function: types.FunctionType) -> None:
        self.by_value.append(function)
        code = function.__code__
        for part in code_facts.read(code):
            for name in part.imports:
                self.note(name or function.__globals__.get("__package__"))
        if code.co_filename not in self.texts:
            text = "".join(linecache.getlines(code.co_filename, function.__globals__))
            if 0 < len(text) <= _MAX_SOURCE:
                self.texts[code.co_filename] = text
