"""Values of jobs and groups that other calls take: a part of one, those that a map goes through, what is awaited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from clusterfn.bridge.attributes import has_method
from clusterfn.bridge.job_states import SHORT
from clusterfn.packing.dependencies import JobArgument, Reference
from clusterfn.public_api import public_api


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
    for each in iterables:
        is_group = isinstance(each, JobArgument) and hasattr(each, "__len__")
        if isinstance(each, JobArgument) and not is_group:
            raise TypeError(
                f"{each!r:.80} means one value, and map() takes lists: map over its .result() to call "
                f"{name} with each item of that value, or use submit() to call {name} once, with the value"
            )
        if not has_method(each, "__iter__") and not has_method(each, "__getitem__"):
            raise TypeError(f"{each!r:.60} is not iterable: give map() a list, or range(N)")
        sources.append(map(each.__getitem__, range(len(each))) if is_group else each)
    return sources


def describe_open(inputs: Sequence[Reference]) -> str:
    """Say what a call waits for that takes these values; "" for nothing, as far as this process knows."""
    named = []
    for each in inputs:
        if not each.source.has_ended():
            left = each.source.items_left()
            which = each.label if left is None else f"{each.name} ({each.id[:SHORT]})"
            named.append(f"{left[0]} of {left[1]} items of {which}" if left is not None else which)
    return f"waiting for {', '.join(named)}" if named else ""
