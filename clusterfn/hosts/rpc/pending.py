"""The open requests of a link by their numbers, and what became of those that others come after.

Whoever calls holds the link's lock.
"""

from __future__ import annotations

import collections
from typing import Any

from clusterfn.errors import ClusterfnError
from clusterfn.hosts.rpc.boot import HELLO_ID
from clusterfn.hosts.rpc.requests import Request

FAILURES_KEPT = 10_000


class Register:
    """See the module.

    Attributes:
        last: The number that was given last.
        unsent: The numbers of those that were made while there was no connection.
    """

    def __init__(self) -> None:
        self.last = HELLO_ID
        self.unsent: set[int] = set()
        self._open: dict[int, Request[Any]] = {}
        self._failures: collections.OrderedDict[int, ClusterfnError] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def number(self) -> int:
        """A fresh one."""
        self.last += 1
        return self.last

    def add(self, request: Request[Any]) -> None:
        """It is open from now on; it has its number."""
        self._open[request.id] = request

    def get(self, number: int) -> Request[Any] | None:
        """The open request of that number."""
        return self._open.get(number)

    def remove(self, number: int, failure: ClusterfnError | None = None) -> Request[Any] | None:
        """It has ended; with its error if it failed, for those that come after it."""
        if failure is not None:
            self._failures[number] = failure
        while len(self._failures) > FAILURES_KEPT:
            self._failures.popitem(last=False)
        return self._open.pop(number, None)

    def failed_before(self, request: Request[Any]) -> ClusterfnError | None:
        """The error of the first that it comes after and that failed; None if none did."""
        return next((self._failures[number] for number in request.after if number in self._failures), None)

    def all(self) -> list[Request[Any]]:
        """Those that are open."""
        return list(self._open.values())

    def keep_what_is_sent_again(self) -> None:
        """The stream has ended: some requests end with it."""
        for request in self.all():
            if not request.resend():
                del self._open[request.id]

    def take_unsent(self) -> list[Request[Any]]:
        """Remove those that no host has been asked."""
        taken = [self._open.pop(number) for number in self.unsent if number in self._open]
        self.unsent.clear()
        return taken

    def take_all(self) -> list[Request[Any]]:
        """Remove all."""
        taken = self.all()
        self._open.clear()
        return taken
