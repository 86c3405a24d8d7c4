"""What comes over a stream, given to the requests that it answers: in the reader thread, or in one that receives."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts.rpc.frames import AgentStream, Header, error_of, no_frame
from clusterfn.hosts.rpc.request_queue import LinkStream, PendingRequests
from clusterfn.hosts.rpc.requests import MalformedAnswer, OpenRequest
from clusterfn.hosts.transports.base import DeliveringStream

# Far above the numbers of requests, so that a ping never takes the number of one.
PING_ID = 2**31


class AnswerReader:
    """Gives answers to the open requests of a link.

    Args:
        cancel: Forgets the request of that number, and asks the host to stop it.

    Attributes:
        threads: Those on which no answer can be waited for.
    """

    def __init__(
        self, host: Host, line: LinkStream, requests: PendingRequests, cancel: Callable[[int], None]
    ) -> None:  # fmt: skip
        self._host = host
        self._line = line
        self._requests = requests
        self._cancel = cancel
        self.threads: set[int] = set()
        # Holds what the receiving thread raised for the last part. The reader thread reports it with the next frame.
        self._failed: BaseException | None = None

    def serve(self, opened: AgentStream) -> HostError | None:
        """Answer requests until the stream has ended; return the error if it sent what is no frame."""

        def progress() -> None:
            # A long answer takes minutes on a slow line. Each part of it shows that the connection is alive.
            self._line.pulse.moved = time.monotonic()

        self._failed = None
        opened.reader.on_part = progress
        if isinstance(opened.stream, DeliveringStream):
            opened.reader.hand_over(opened.stream.deliver, self._take_piece)
        try:
            while (frame := opened.reader.frame()) is not None:
                self._line.pulse.hear(time.monotonic())
                self._answer(*frame)
        except OSError:
            return None
        except HostError as error:
            error.host = self._host.name
            return error
        return None

    def _answer(self, header: Header, body: bytes) -> None:
        failed, self._failed = self._failed, None
        request = self._requests.get(header["id"])
        if request is None:
            if not 0 < header["id"] <= self._requests.last and header["id"] != PING_ID:
                raise no_frame("it answers an unknown request", repr(header).encode())
            # This answers a request that was cancelled here meanwhile, or a ping.
            return
        if header.get("end"):
            self._end(request, header, body)
            return
        try:
            if failed is not None:
                raise failed
            request.take(header, body)
        except MalformedAnswer as odd:
            self.give_up(request, self._senseless(request, odd))
        except BaseException as error:  # noqa: BLE001 - the caller's own function: its error goes to its reply
            self.give_up(request, error)
        finally:
            # The traceback of the error refers to this frame, which would keep the received data in memory.
            failed = None

    def _take_piece(self, header: Header, part: bytes) -> bool:
        """Take a part of a file in the thread that receives it; leave to `_answer` what cannot be taken."""
        self._line.pulse.hear(time.monotonic())
        request = self._requests.get(header["id"])
        if request is None:
            return False
        try:
            if not request.takes_at_once(header):
                return False
            with self.no_wait_here():
                request.take(header, part)
        except BaseException as error:  # noqa: BLE001 - `_answer` raises it, in the thread that may report it
            self._failed = error
        return self._failed is None

    def _end(self, request: OpenRequest[Any], header: Header, body: bytes) -> None:
        failed: Header | None = None if header.get("ok") else header["error"]
        with self._line.changed:
            if failed is not None and failed["kind"] == "skipped":
                # The agent skips a request if an earlier one that it needs has failed. The error of that one says why.
                failed = self._requests.failed_before(request) or failed
            self._requests.remove(request.id, failed)
        if failed is not None:
            request.fail(error_of(self._host, failed), header)
            return
        try:
            request.finish(header, body)
        except Exception as odd:  # noqa: BLE001 - a host that leaves out what belongs there: this request alone fails
            request.fail(self._senseless(request, odd))

    def give_up(self, request: OpenRequest[Any], error: BaseException) -> None:
        """End a request with an error of this side, and stop it on the host."""
        request.fail(error)
        self._cancel(request.id)

    def _senseless(self, request: OpenRequest[Any], odd: BaseException) -> ClusterfnError:
        return wrapped(self._host.name, odd, f"{self._host.name} sent an invalid answer to `{request.do}`")

    @contextlib.contextmanager
    def no_wait_here(self) -> Iterator[None]:
        """Reject waits for an answer on this thread meanwhile: no other thread brings it."""
        here = threading.get_ident()
        new = here not in self.threads
        self.threads.add(here)
        try:
            yield
        finally:
            if new:
                self.threads.discard(here)


def wrapped(host: str, error: BaseException, message: str) -> ClusterfnError:
    """Return an error of the library as it is, and any other as the cause of one with this message."""
    if isinstance(error, ClusterfnError):
        return error
    host_error = HostError(message, host=host, evidence=[f"{type(error).__name__}: {error}"])
    host_error.__cause__ = error
    return host_error
