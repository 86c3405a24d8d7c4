"""Calls of a session without a host: the test ends each, and sees which were withdrawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from clusterfn import Job
from clusterfn.api.session_map import SessionMap
from tests.fakes.taken import run, source


class Call(Job[Any]):
    """A call; the test ends it."""

    def __init__(self, item: Any) -> None:
        known = run(f"7f3a/{item}", "here")
        super().__init__(known, source(known))
        self.item = item


class Calls:
    """Remembers the calls that were sent, and those that were withdrawn."""

    def __init__(self) -> None:
        self.sent: list[Call] = []

    def __call__(self, item: Any) -> Any:
        self.sent.append(Call(item))
        return self.sent[-1]

    @property
    def items(self) -> list[Any]:
        return [call.item for call in self.sent]

    @property
    def withdrawn(self) -> list[Any]:
        return [call.item for call in self.sent if call.cancelled()]

    def end(self, *indices: int) -> None:
        for index in indices:
            self.sent[index].set_result(self.sent[index].item * 10)


def mapped(calls: Calls, items: Iterable[Any], timeout: float | None = None, size: int | None = None) -> Iterator[Any]:
    """What `Session.map` returns."""
    return SessionMap(calls, [items], timeout, size).values()
