"""Counts the round trips that somebody waits for: each request is as late as what its sender had heard by then.

A request that is sent while an answer of trip n is the last that was waited for is answered in trip n + 1; so what is
sent together costs one, and what nobody waits for costs none. Of a connection's own trips a proxy tells. Changes the
library's methods while it is installed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from clusterfn.calls import following, job
from clusterfn.hosts import connection
from clusterfn.hosts.rpc import link, link_stream
from clusterfn.hosts.rpc.reply import Reply


class Waits:
    """A clock of round trips.

    Args:
        passed: How many round trips connections have made so far, by the proxies before the hosts.

    Attributes:
        trips: How many have been waited for.
        connecting: How many of them were for making connections.
    """

    def __init__(self, passed: Callable[[], int]) -> None:
        self.trips = self.connecting = 0
        self._passed = passed
        self._here = threading.local()  # on a thread that gives answers to their requests: the trip of this answer

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """While this lasts, trips are counted."""
        patched = [
            (link.Link, "ask", self._send), (link_stream.AnswerReader, "_answer", self._answer),
            (link.Link, "_try_to_connect", self._reconnect), (Reply, "_wait", self._wait),
            (Reply, "substitute", self._substitute), (connection, "_open", self._open),
            (following.AgentSource, "open", self._open_attempt), (job.Job, "result", self._of_job),
            (job.Job, "exception", self._of_job),
        ]  # fmt: skip
        with contextlib.ExitStack() as stack:
            for owner, name, around in patched:
                stack.enter_context(mock.patch.object(owner, name, _around(getattr(owner, name), around)))
            yield

    def _send(self, method: Any, its_link: Any, request: Any) -> None:
        request.reply.trip, request.reply.clock = getattr(self._here, "trip", self.trips) + 1, self
        method(its_link, request)

    def _answer(self, method: Any, its_reader: Any, header: Any, body: bytes) -> None:
        request = its_reader._requests.get(header["id"])
        self._here.trip = request.reply.trip if request and self._counts(request.reply) else self.trips
        try:
            method(its_reader, header, body)
        finally:
            del self._here.trip

    def _wait(self, method: Any, reply: Any, *args: Any) -> None:
        method(reply, *args)
        self._heard(reply)

    def _substitute(self, method: Any, reply: Any, cancel: Any) -> Any:
        whole = method(reply, cancel)
        whole.trip, whole.clock = getattr(reply, "trip", 0), getattr(reply, "clock", None)
        return whole

    def _heard(self, what: Any) -> None:
        if not hasattr(self._here, "trip") and self._counts(what):
            self.trips = max(self.trips, what.trip)

    def _counts(self, what: Any) -> bool:
        """Whether it was sent while this one counts: what goes on from a count before has other numbers."""
        return getattr(what, "clock", None) is self

    def _open(self, method: Any, *args: Any, **more: Any) -> Any:
        before = self._passed()
        opened = method(*args, **more)
        took = self._passed() - before
        self.connecting += took
        self._here.took = took
        if not hasattr(self._here, "again"):
            self.trips += took
        return opened

    def _reconnect(self, method: Any, its_link: Any, *args: Any) -> Any:
        """What is open is asked again, and so answered as much later."""
        self._here.again, self._here.took = True, 0
        waiting = [request.reply for request in its_link._requests.values()]
        done = method(its_link, *args)
        for reply in waiting:
            reply.trip += self._here.took
        return done

    def _open_attempt(self, method: Any, source: Any, attempt: int) -> Any:
        """A job has its outcome at the trip of the request that brings it, which a reconnect makes later."""
        source.run.reply = reply = method(source, attempt)
        return reply

    def _of_job(self, method: Any, its_job: Any, *args: Any, **more: Any) -> Any:
        try:
            return method(its_job, *args, **more)
        finally:
            self._heard(getattr(job.run_of(its_job), "reply", its_job))


def _around(method: Any, around: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **more: around(method, *args, **more)
