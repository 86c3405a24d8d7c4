"""What a host gets of a value, a call or an exception, and what comes back: their bytes, read again in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clusterfn.hosts import serialization
from clusterfn.packing import payload

container, exceptions = serialization.part("container"), serialization.part("exceptions")
CannotRebuild: type[Exception] = exceptions.CannotRebuild


def packed(obj: Any) -> bytes:
    """What a file holds of a value."""
    return b"".join(container.pack(obj).pieces())


def unpacked(data: bytes) -> Any:
    """The value in such a file."""
    return container.loads(data)


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
