"""What a running job uses, as its supervisor on the host has written it last. Read only on demand."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.calls import outcome
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import loop

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, Reply

# The supervisor writes every five seconds, so asking more often brings nothing new.
_FRESH_S = 1.0
_ANSWER_S = 5.0
_MOST_BYTES = 1 << 20


class LiveUsage:
    """The usage of one job.

    Args:
        connection: Returns the connection to its host.
        path: Returns the file that its present attempt writes.

    Attributes:
        last: What was read last; empty before its supervisor has measured anything.
    """

    def __init__(self, connection: Callable[[], HostConnection], path: Callable[[], str]) -> None:
        self.last: Mapping[str, Any] = {}
        self._connection = connection
        self._path = path
        self._asked_at = -_FRESH_S
        self._asked: tuple[Reply[Any], io.BytesIO] | None = None

    def read(self) -> Mapping[str, Any]:
        """Return it as it is now, or as it was last known if the host does not answer soon."""
        self.refresh()
        # There may be no connection now, or no answer yet.
        with contextlib.suppress(ClusterfnError):
            if self._asked is not None and not self._connection().answers_here():
                reply, out = self._asked
                self._take(reply, out, _ANSWER_S)
        return self.last

    def refresh(self, after_s: float = _FRESH_S) -> None:
        """Ask for it, unless that was done within `after_s`; does not wait for the answer."""
        if time.monotonic() < self._asked_at + after_s or (self._asked is not None and not self._asked[0].done()):
            return
        self._asked_at, out = time.monotonic(), io.BytesIO()
        # There may be no connection now.
        with contextlib.suppress(ClusterfnError):
            reply = self._connection().get(self._path(), out.write, until=_MOST_BYTES)
            self._asked = reply, out
            loop.begin(self._receive(reply, out))

    async def _receive(self, reply: Reply[Any], out: io.BytesIO) -> None:
        await reply.error()
        self._take(reply, out)

    def _take(self, reply: Reply[Any], out: io.BytesIO, timeout_s: float | None = None) -> None:
        # Without the file, nothing has been measured yet.
        if reply.exception(timeout_s) is not None:
            return
        try:
            # The supervisor overwrites the line, so the rest of a longer line may follow it.
            usage = json.loads(out.getvalue().partition(b"\n")[0])
        except (ValueError, RecursionError):
            # The file is being written.
            return
        if isinstance(usage, dict) and outcome.is_usage(usage):
            self.last = usage
