"""The interface of a transport: it opens a byte stream to a command on a host, and nothing else.

Each implementation translates the errors of its library, and passes tests/contract/test_transport_contract.py.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from clusterfn.errors import Unreachable

if TYPE_CHECKING:
    from clusterfn.hosts.transports.prompts import Asker


class Stream(Protocol):
    """Input and output of one running command. Two threads may read and write at once; a third may call `close`."""

    def read(self, size: int) -> bytes:
        """Wait for bytes; return at most `size` of them, or b"" once the stream has ended."""

    def write(self, data: bytes) -> None:
        """Write all of it; block while the other side is slow.

        Raises:
            OSError: The stream has ended; `cause` says why.
        """

    def close(self) -> None:
        """End the stream, any number of times; a blocked `read` returns b""."""

    def cause(self) -> str | None:
        """Return why the stream ended; None while it is open, or if this side closed it."""

    def stderr(self) -> str:
        """Return the last few KB that the command has written to stderr."""


class DeliveringStream:
    """A stream whose own thread receives, and may hand over what it receives without waking the reader."""

    def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Give `take` all that comes, until it returns False or the stream ends; call it instead of `read`.

        Args:
            take: Called in the thread that receives. It must not raise, nor wait for anything that this stream brings.
        """
        raise NotImplementedError


class Standby(NamedTuple):
    """A command that waited on the host, and that this process has taken over.

    Attributes:
        stream: Its input and output, after the marker by which it said that it waits.
        printed: What the login shell printed before the marker.
    """

    stream: Stream
    printed: bytes


class Transport:
    """Reaches one host.

    Attributes:
        via: By what the last stream was opened, and why by that: "openssh (a ControlMaster is open)".
    """

    via: str

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """Start `command` in the user's login shell on the host.

        Args:
            asker: Asks the person for what a login needs; None rejects a login that needs one.

        Raises:
            HostError: Unreachable, AuthenticationError or HostKeyError where it is one of those.
        """
        raise NotImplementedError

    def take_standby(self, name: Callable[[], str]) -> Standby | None:
        """Return the command that waits under this name since before anybody asked for it. Never waits for the host.

        Args:
            name: Returns the name, which takes time; called only if something may wait.
        """
        return None


@contextlib.contextmanager
def closed_on_failure(close: Callable[[], object]) -> Iterator[None]:
    """Close what was opened if the block fails."""
    try:
        yield
    except BaseException:
        # This includes Ctrl-C: no caller has it yet, so no caller could close it.
        close()
        raise


T = TypeVar("T")
PAUSES_S = (0.3, 1.0, 2.0)


def open_with_retries(
    open_once: Callable[[], T], hung_up: tuple[type[BaseException], ...], pauses_s: Sequence[float]
) -> T:
    """Call `open_once`; retry after each pause if one of these causes shows that a busy sshd hung up at once."""
    for pause in pauses_s:
        began = time.monotonic()
        try:
            return open_once()
        except Unreachable as error:
            if not isinstance(error.__cause__, hung_up) or time.monotonic() - began > pauses_s[-1]:
                raise
            # A busy sshd drops many programs at the same time, so spread their retries.
            time.sleep(pause * random.uniform(0.5, 1.5))
    return open_once()
