"""The results of many calls of one function, in the order of the items or as each call ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from clusterfn.calls import failed_items, map_display
from clusterfn.config.units import parse_memory
from clusterfn.errors import ResultTooLarge
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    import asyncio

    from clusterfn.calls.group_state import GroupState

R = TypeVar("R")
E = TypeVar("E")  # what may be in the place of a value: Exception, or nothing with on_error="raise"


class GroupResults(Generic[R, E]):
    """The results of the calls of one `map`, and waiting for them. `len` is the number of calls.

    Args:
        known: What is known of the calls.
    """

    def __init__(self, known: GroupState) -> None:
        self._known = known

    def __len__(self) -> int:
        return len(self._known)

    def done(self) -> bool:
        """Whether each call has ended."""
        return self._known.done()

    @public_api
    def results(self, timeout: float | None = None) -> list[R | E]:
        """The values in the order of the items, waiting for them and showing, once, a line for each that ends.

        With `on_error="collect"` an exception takes the place of a value; with "raise" the first one is raised, and
        the others can still be read.

        Args:
            timeout: Seconds; None for as long as it takes.

        Raises:
            MapError: Every call of the map failed; it lists each distinct cause with its count.
            TimeoutError: Not all have ended within `timeout`; they continue.
            KeyboardInterrupt: After Ctrl-C; they continue, unless it is pressed twice.
            Exception: With "raise", that of the first call that failed.
        """
        map_display.show_until_done(self._known, timeout)
        return failed_items.results_of(self._known)

    @public_api
    def result(self, index: int, timeout: float | None = None, *, max_result: str | None = None) -> R:
        """The value of one call, waiting for it without a word; a negative index counts from the end, as everywhere.

        Args:
            index: Which.
            timeout: Seconds; None for as long as it takes.
            max_result: Size with a unit, "8GB": fetch a value up to this size that was too large for the group.

        Raises:
            IndexError: There is no such item.
            TimeoutError: It has not ended within `timeout` seconds; it continues.
            Exception: What it raised, or one of `clusterfn.errors`.
        """
        most = None if max_result is None else parse_memory(max_result, "max_result")
        which, until = self._known.at(index), None if timeout is None else time.monotonic() + timeout
        ended = self._known.end_of(which, until)
        if most is not None and isinstance(ended.error, ResultTooLarge):
            left = None if until is None else max(0.0, until - time.monotonic())
            value = self._known.require_backend().results_of(which).fetch_value(which, most, left)
            self._known.keep_value(which, value)
            return cast(R, value)
        if ended.error is not None:
            raise ended.error
        return cast(R, ended.value)

    @public_api
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until each call has ended, without showing each; whether they have after `timeout` seconds."""
        try:
            if len(self):
                self._known.ended_after(len(self) - 1, None if timeout is None else time.monotonic() + timeout)
        except concurrent.futures.TimeoutError:
            return False
        return True

    @public_api
    def as_completed(self, timeout: float | None = None) -> Iterator[tuple[int, R | E]]:
        """`(index, result)` of each call as it ends.

        Raises:
            TimeoutError: Not all have ended within `timeout` seconds.
            Exception: With `on_error="raise"`, that of the first call that failed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        known, given = self._known, 0
        while given < len(known):
            index, ended = known.ended_after(given, until)
            given += 1
            failed_items.raise_unless_collected(ended, known.on_error)
            yield index, cast("R | E", ended.result)

    def __iter__(self) -> Iterator[tuple[int, R | E]]:
        return self.as_completed()

    async def __aiter__(self) -> AsyncIterator[tuple[int, R | E]]:
        import asyncio

        known, changed, given = self._known, asyncio.Event(), self.as_completed()
        with known.listening(functools.partial(_wake, asyncio.get_running_loop(), changed)):
            for before in range(len(self)):
                while not known.has_news(before):
                    changed.clear()
                    await changed.wait()
                yield next(given)

    @property
    def failed(self) -> dict[int, BaseException]:
        """The exceptions of the calls that have failed so far, by index."""
        return self._known.failed

    def __contains__(self, value: object) -> bool:
        raise TypeError("a JobGroup does not say what is in it: look at group.results()")


def _wake(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    # A loop that is closed has nothing left that waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(changed.set)
