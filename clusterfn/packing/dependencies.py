"""Jobs as arguments: what a call may take the value of, and what is known of it when the call is packed.

The value stays on the host. The payload has a reference in its place, which the worker replaces by the value.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.attributes import has_method
from clusterfn.bridge.job_states import SHORT
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Reply


class Place(NamedTuple):
    """Where a call goes.

    Attributes:
        host, root: Where jobs lie whose values it can take there.
        in_session: Whether it is a call of a session, which takes no values there: they are sent with it.
    """

    host: str
    root: str
    in_session: bool = False


class JobArgument:
    """A Job, a JobGroup or a part of one: as an argument of a call it means its value."""

    # The expression that gives the value on this machine, for messages.
    _value = ".result()"

    def _reference(self) -> Reference:
        raise NotImplementedError


def reference_of(argument: JobArgument) -> Reference:
    """Return what the payload has in its place, and what must be known of it."""
    return argument._reference()


class Reference(NamedTuple):
    """What a call refers to.

    Attributes:
        source: What has the value.
        id, name, host, folder: Of it.
        item: The index of an item of a group; None for the value of a job, or the list of all values of a group.
        keys: What is looked up in the value, one after another.
    """

    source: ArgumentSource
    id: str
    name: str
    host: str
    folder: str
    item: int | None = None
    keys: tuple[Any, ...] = ()

    @property
    def place(self) -> Place | None:
        """Where it lies; None for a call of a session, which belongs to its client."""
        jobs, job = posixpath.split(self.folder)
        root, name = posixpath.split(jobs)
        return Place(self.host, root) if name == layout.JOBS and job == self.id else None

    @property
    def label(self) -> str:
        """What a person calls it."""
        return f"{self.name} ({self.id[:SHORT]})" + (f"[{self.item}]" if self.item is not None else "")


class ArgumentSource:
    """The Job or JobGroup whose value an argument means."""

    def __init__(self, argument: Any) -> None:
        self.argument = argument

    def has_ended(self) -> bool:
        """Whether its value, or all of its values, are here."""
        raise NotImplementedError

    def items_left(self) -> tuple[int, int] | None:
        """Return how many items of a group have not ended, and how many there are; None of a job."""
        return None

    def value_here(self, item: int | None, timeout: float | None = None) -> Any:
        """Return the value, or that of one item, waiting for it; raise its exception if it failed."""
        raise NotImplementedError

    def await_end(self) -> None:
        """Wait until it has ended, however."""
        raise NotImplementedError

    def open_requests(self) -> Sequence[Reply[Any]]:
        """Return the requests after which its folder is on the host, and its scheduler knows it."""
        raise NotImplementedError


class NotEnded(Exception):
    """A call of a session takes a value that does not exist yet, or a worker that an actor is about to leave.

    Attributes:
        source: Of the Job or JobGroup to wait for.
        leaving: The name of the actor; "" for a value.
    """

    def __init__(self, source: ArgumentSource, leaving: str = "") -> None:
        super().__init__(source)
        self.source = source
        self.leaving = leaving


class JobPart(JobArgument):
    """A part of the value of a Job or a JobGroup, `job["loss"]` or `group[3]`, as an argument of another call."""

    def __init__(self, reference: Reference) -> None:
        self._whole = reference

    def _reference(self) -> Reference:
        return self._whole

    def __getitem__(self, key: Any) -> JobPart:
        return JobPart(self._whole._replace(keys=(*self._whole.keys, key)))

    @public_api
    def result(self, timeout: float | None = None) -> Any:
        """This part of the value, waiting for it.

        Raises:
            LookupError, TypeError: The value has no such part.
            TimeoutError: The job has not ended within `timeout` seconds; it continues.
            Exception: As `Job.result`.
        """
        value = self._whole.source.value_here(self._whole.item, timeout)
        for key in self._whole.keys:
            value = value[key]
        return value

    # With __getitem__ alone, `list(part)` and `x in part` would never end.
    __iter__ = None
    __contains__ = None
    _as_argument = "pass a part of the value itself: job.result()[…]"

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is not the value itself: call {self._value}")

    def __repr__(self) -> str:
        keys = "".join(f"[{key!r}]" for key in self._whole.keys)
        return f"<the value of {self._whole.label}{keys}, as an argument of another call>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"this is {self!r}, and not the value itself: pickle its {self._value}")


def as_lists(iterables: Sequence[Any], name: str) -> list[Iterable[Any]]:
    """Return what a map goes through: of a group, what means the value of each item.

    Args:
        name: That of the function, for the message.

    Raises:
        TypeError: One of them is one value, and no list.
    """
    sources: list[Iterable[Any]] = []
    for source in iterables:
        is_group = isinstance(source, JobArgument) and hasattr(source, "__len__")
        if isinstance(source, JobArgument) and not is_group:
            raise TypeError(
                f"{source!r:.80} means one value, and map() takes lists: map over its .result() to call "
                f"{name} with each item of that value, or use submit() to call {name} once, with the value"
            )
        if not has_method(source, "__iter__") and not has_method(source, "__getitem__"):
            raise TypeError(f"{source!r:.60} is not iterable: give map() a list, or range(N)")
        sources.append(map(source.__getitem__, range(len(source))) if is_group else source)
    return sources


def describe_open(inputs: Sequence[Reference]) -> str:
    """Say what a call waits for that takes these values; "" for nothing, as far as this process knows."""
    named = []
    for reference in inputs:
        if not reference.source.has_ended():
            left = reference.source.items_left()
            which = reference.label if left is None else f"{reference.name} ({reference.id[:SHORT]})"
            named.append(f"{left[0]} of {left[1]} items of {which}" if left is not None else which)
    return f"waiting for {', '.join(named)}" if named else ""
