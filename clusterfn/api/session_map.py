"""`Session.map`: a call for each item, values in order, and what a failure means for the rest."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from clusterfn.calls.job import Job, deadline_of, left_s, withdraw
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import loop
from clusterfn.public_api import public_api

R = TypeVar("R")


def parse_size(name: str, value: object) -> int:
    """Return a number of calls.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}={value!r} is not a number of calls", hint="give a whole number of 1 or more")
    return value


class SessionMap:
    """One map over a session.

    Args:
        submit: Sends one call, with these arguments, and returns its Job.
        iterables: One for each argument.
        timeout: Seconds from now after which waiting for a value ends; None: no limit.
        buffersize: How many calls are sent whose values were not taken; None: all at once.
    """

    def __init__(
        self,
        submit: Callable[..., Job[Any]],
        iterables: Sequence[Iterable[Any]],
        timeout: float | None,
        buffersize: int | None,
    ) -> None:
        self._pid = os.getpid()
        self._until = deadline_of(timeout)
        self._submit = submit
        self._items = zip(*iterables)
        self._sent: collections.deque[Job[Any]] = collections.deque()
        try:
            self._send(buffersize)
        except BaseException:  # the user's iterable may raise anything
            # The caller has no handle of the calls already sent.
            self._withdraw()
            raise

    def _send(self, count: int | None) -> None:
        for args in itertools.islice(self._items, count):
            self._sent.append(self._submit(*args))

    @public_api
    def values(self) -> Iterator[Any]:
        """Yield the values in the order of the items; keep none of them."""
        try:
            while self._sent:
                value = self._value()
                self._send(1)
                yield value
                del value
        finally:
            self._withdraw()

    def _value(self) -> Any:
        """Return the value of the next call; on a timeout it is withdrawn with the others."""
        self._sent[0].exception(left_s(self._until))
        return self._sent.popleft().result()

    def _withdraw(self) -> None:
        """Withdraw the calls whose values were not taken, the last first: the session takes them in their order.

        The host is asked about each, so this does not wait: the caller waits for his exception.
        """
        left = [job for job in self._sent if not job.done()]
        self._sent.clear()
        # A forked child that leaves the loop must not withdraw its parent's calls.
        if left and os.getpid() == self._pid:
            loop.begin(_withdraw_each(left))


async def _withdraw_each(jobs: list[Job[Any]]) -> None:
    # If the host does not answer, the other requests would fail as well.
    with contextlib.suppress(ClusterfnError):
        while jobs:
            await loop.in_thread(functools.partial(withdraw, jobs.pop()), "clusterfn-session-map")
