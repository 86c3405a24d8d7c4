"""Has the items of a group that have ended loaded, in threads: loading a value runs code of the user's."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from clusterfn.hosts import loop


class ItemRecord:
    """The journal's line about an item that has ended, and the bytes of its value.

    Attributes:
        error: Why the value has not come, if it was to be fetched by itself.
    """

    error: BaseException | None = None

    def __init__(self, element: int, attempt: int, line: dict[str, Any], value: bytearray | None) -> None:
        self.element, self.attempt, self.line, self.value = element, attempt, line, value


class ItemLoader:
    """Loads records in threads, one batch after another. No thread waits while none comes.

    Args:
        load: Loads one, and raises nothing.
        is_done: Whether no more are to be loaded.
        when_over: Called once in the loop, when that is so, or when all is loaded after `close`. Must not wait.
    """

    def __init__(
        self, load: Callable[[ItemRecord], None], is_done: Callable[[], bool], when_over: Callable[[], None]
    ) -> None:
        self._load, self._is_done, self._when_over = load, is_done, when_over
        self._records: collections.deque[ItemRecord] = collections.deque()
        # Whether the loop was asked to load what waits. Any thread sets it, so that many records wake the loop once.
        self._is_asked = False
        # The loop alone touches these.
        self._is_loading = self._is_closed = self._is_over = False

    def put(self, record: ItemRecord) -> None:
        """Have a record loaded, from any thread."""
        self._records.append(record)
        if not self._is_asked:
            self._is_asked = True
            loop.call(self._begin)

    def close(self) -> None:
        """Take note that no more records come."""
        loop.call(self._close)

    def _close(self) -> None:
        self._is_closed = True
        self._begin()

    def _begin(self) -> None:
        if not self._is_loading and not self._is_over:
            self._is_loading = True
            loop.begin(self._load_all())

    async def _load_all(self) -> None:
        while self._has_waiting():
            await loop.in_thread(self._load_waiting, "clusterfn-group")
        self._is_loading = False
        self._is_over = self._is_closed or self._is_done()
        if self._is_over:
            self._when_over()

    def _has_waiting(self) -> bool:
        # The flag comes first: a record that comes after the look below asks for another one.
        self._is_asked = False
        return bool(self._records) and not self._is_done()

    def _load_waiting(self) -> None:
        while self._records and not self._is_done():
            self._load(self._records.popleft())
