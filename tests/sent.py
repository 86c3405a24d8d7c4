"""What a host gets of a value, a call or an exception, and what comes back: their bytes, read again in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from clusterfn.hosts import serialization
from clusterfn.packing import code_notes, payload
from clusterfn.packing.dependencies import Place

container, exceptions = serialization.part("container"), serialization.part("exceptions")
CannotRebuild: type[Exception] = exceptions.CannotRebuild


def packed(obj: Any) -> bytes:
    """What a file holds of a value."""
    return b"".join(container.pack(obj).pieces())


def unpacked(data: bytes) -> Any:
    """The value in such a file."""
    return container.loads(data)


def pickled(obj: Any) -> bytes:
    """What a file holds of a value after its first line."""
    data: bytes = serialization.part("pickler").dumps(obj)
    return data


def unpickled(data: bytes) -> Any:
    """The value of such a pickle."""
    return serialization.part("unpickler").loads(data)


def prepared(
    function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, *,
    host: str | None = None, root: str = "/root", python: tuple[int, int] | None = None,
) -> payload.Payload:  # fmt: skip
    """A call before it is sent: its bytes, what goes with them, and what is said of it.

    Args:
        host: Where it will run, below `root`. None: its arguments may not be jobs.
        python: The version there, if it is another one.
    """
    place = None if host is None else Place(host, root)
    return payload.pack(function, args, kwargs or {}, python, place=place)


def said_of_code(
    function: Callable[..., Any], constants: Mapping[str, Any] | None = None
) -> list[str]:  # fmt: skip
    """What is said before a call, or with constants a map, is sent of what its code does otherwise in a job."""
    return [each.text for each in code_notes.find(function, constants)]


def look_patiently(patch: pytest.MonkeyPatch) -> None:
    """Let what cannot travel be looked for as long as that takes: a busy machine has time to find it."""
    patch.setattr(serialization.part("unpicklable"), "LIMIT_S", 60.0)


def why_not_returned(value: object) -> tuple[str, str]:
    """What a job says of a value that cannot be pickled: which part of it, and what to return instead."""
    unpicklable = serialization.part("unpicklable")
    said, part = unpicklable.find(value, "result")
    return said, unpicklable.instead_of(part)


def logging_here() -> Any:
    """What a call tells a job of the logging of this process; None if nothing."""
    return json.loads(prepared(len, ([],)).data.partition(b"\n")[0]).get("logging")


def log_as(facts: Any) -> None:
    """Let this process log as a job does that was told this."""
    serialization.part("logs").show(facts)


def sent(obj: Any) -> Any:
    """What a function finds as its argument on the host."""
    return container.loads(payload.pack(print, (obj,), {}).data)[1][0]


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the call gives on the host, and what comes back of it."""
    there, given, named = container.loads(payload.pack(function, args, kwargs).data)
    return sent(there(*given, **named))


def records_of(error: BaseException) -> list[dict[str, Any]]:
    """What a host writes of an exception, and of those that led to it."""
    records: list[dict[str, Any]] = exceptions.to_records(error)
    return records


def raised(error: BaseException, change: Callable[[dict[str, Any]], None] | None = None) -> Any:
    """The exception that the caller gets, where `change` has altered the first record."""
    records = records_of(error)
    if change is not None:
        change(records[0])
    return exceptions.from_records(records)
