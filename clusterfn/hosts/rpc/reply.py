"""The answer to a request, for the caller: to await in a coroutine, or to wait for in a thread.

`resolve` and `reject` are called by requests alone.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import threading
import time
import types
from collections.abc import Callable, Generator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from clusterfn.errors import HostError, Unreachable
from clusterfn.hosts import spoken_wait

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
# The first entry of `_sharers`, whose removal ends the request.
_ITSELF, _ANOTHER = "itself", "another"
# What to do about a connection of the process that forked this one.
OF_PARENT = "connect again in this process, or start it with the spawn method"


class RequestCancelled(concurrent.futures.CancelledError):
    """A request was cancelled, and not who waits for it.

    asyncio takes CancelledError itself for the latter wherever a future of a thread meets one of its own.
    """


class AnsweringLink(NamedTuple):
    """What brings the answers of a host.

    Attributes:
        host: Its name.
        threads: Those that bring them, on which no answer can be waited for.
        trouble: Says why none comes; "" while the host is connected.
    """

    host: str = ""
    threads: AbstractSet[int] = frozenset()
    trouble: Callable[[], str] = str


def _wake(woken: asyncio.Future[None], _: Any) -> None:
    # The coroutine may have been cancelled before this call runs in the loop.
    if not woken.done():
        woken.set_result(None)


class Reply(Generic[T]):
    """The answer to one request, when it comes.

    Attributes:
        id: Names the request in `after` of later ones.
        moved: Bytes of its files that have been sent or have come; starts again at 0 if they are sent again.
        size: Bytes of its files in all; None where that is not known (yet).
        future: Ends with it. Threads wait by `result` instead, which rejects a wait that would never end.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.id = self.moved = 0
        self.size: int | None = None
        self._request, self._link = "", AnsweringLink()
        self._pid = os.getpid()
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._cancel = cancel
        # One entry for each caller that has not cancelled the request. Threads
        # need no lock, because `append` and `pop` are atomic.
        self._sharers = [_ITSELF]

    def share(self) -> bool:
        """Let one more caller take part, so that only the last `cancel` counts; False if it has ended."""
        if self.future.done():
            return False
        self._sharers.append(_ANOTHER)
        # The last caller may just have cancelled the request, and then the new entry does not follow the first.
        return self._sharers[:1] == [_ITSELF]

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the answer, and return its value.

        Raises:
            HostError: What the host refused, or why it can no longer be asked.
            Unreachable: No answer within `timeout_s`; the request stays open.
            RuntimeError: Asked in a callback of this connection, which no answer can overtake.
            concurrent.futures.CancelledError: `cancel` was called.
        """
        self._wait(timeout_s)
        return self.future.result()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the answer; return its error, or None. Raises Unreachable as `result` does."""
        self._wait(timeout_s)
        return self.future.exception()

    def _wait(self, timeout_s: float | None) -> None:
        if self.future.done():
            return
        host = self._link.host
        if not self.is_of_this_process:
            message = f"The answer of {host} to `{self._request}` goes to process {self._pid}, which forked this one"
            raise HostError(message, host=host, hint=OF_PARENT)
        if threading.get_ident() in self._link.threads:
            raise RuntimeError(
                f"A callback waits for the answer of {host} to `{self._request}`, on the thread that must read "
                "it: it would wait forever. Wait in another thread, or in a coroutine"
            )
        began = time.monotonic()

        def describe() -> str:
            what = f"{self._request} on {host}" if self._request else host
            return self._link.trouble() or f"waiting for {what}: no answer for {time.monotonic() - began:.0f} s"

        if not spoken_wait.wait_for_answer(self.future, describe, timeout_s):
            message = f"{host} did not answer `{self._request}` within {timeout_s:g} s"
            hint = "try again; then check the load of the host and of its file systems"
            raise Unreachable(message, host=host, hint=hint, retryable=True)

    @property
    def is_of_this_process(self) -> bool:
        """Whether its answer comes here, and not to the process that forked this one."""
        return os.getpid() == self._pid

    def done(self) -> bool:
        """Whether the answer has come."""
        return self.future.done()

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the answer in a coroutine; raise as `result`. If the coroutine is cancelled, so is the request."""
        yield from self._end()
        return self.future.result()

    @types.coroutine
    def error(self) -> Generator[Any, None, BaseException | None]:
        """Wait for the answer in a coroutine, as `await` does; return its error, or None."""
        yield from self._end()
        return self.future.exception()

    def _end(self) -> Generator[Any, None, None]:
        # Imported late, because importing it takes time, and most programs never await a reply in a coroutine.
        import asyncio

        loop = asyncio.get_running_loop()
        woken, wake = loop.create_future(), cast(Any, _wake)
        self.future.add_done_callback(functools.partial(loop.call_soon_threadsafe, wake, woken))
        try:
            yield from woken
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop the request on the host; `result` then raises CancelledError. Does nothing if it has ended.

        A request that several share ends when each of them has cancelled it.
        """
        try:
            sharer = self._sharers.pop()
        except IndexError:
            # All callers have cancelled it already.
            return
        if sharer == _ITSELF:
            self._cancel()

    def substitute(self, cancel: Callable[[], None]) -> Reply[T]:
        """Return a reply that is answered elsewhere, and has the number and the words of this one."""
        other: Reply[T] = Reply(cancel)
        other.register(self.id, self._request, self._link)
        return other

    def register(self, number: int, request: str, link: AnsweringLink) -> None:
        """Set the request's number, its words, and what brings the answer."""
        self.id, self._request, self._link = number, request, link

    def resolve(self, value: T) -> None:
        """Set the value, unless the request has ended."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            # The request may have ended in another thread just now. The first result counts.
            self.future.set_result(value)
            # A circle through this function would keep large values until the garbage collector comes.
            self._cancel = lambda: None

    def reject(self, error: BaseException) -> None:
        """Set the error, unless the request has ended."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(error)
            self._cancel = lambda: None
