"""The interface of a transport: it opens a byte stream to a command on a host, and nothing else.

Implementations: `local.LocalTransport`, `paramiko.ParamikoTransport`, `openssh.OpensshTransport`, `auto.AutoTransport`,
which chooses between these two, `shared_login.ReusingTransport`, which prefers a held connection to any of them, and
`tests.fakes.transport.FakeTransport`. All pass tests/contract/test_transport_contract.py. Each translates the errors of
its library; no other module does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from clusterfn.errors import Unreachable

if TYPE_CHECKING:
    from clusterfn.hosts.transports.prompts import Asker


class Stream(Protocol):
    """Both ways to one running command. One thread may read while another writes; `close` may come from a third."""

    def read(self, size: int) -> bytes:
        """At least one byte, at most `size`, as soon as there are any; b"" once the stream has ended."""

    def write(self, data: bytes) -> None:
        """All of it, waiting while the other side is slow.

        Raises:
            OSError: The stream has ended; `cause` knows more.
        """

    def close(self) -> None:
        """End it from this side. A blocked `read` returns b"". Any number of times."""

    def cause(self) -> str | None:
        """Why the stream ended, in words; None while it is open or if this side closed it."""

    def stderr(self) -> str:
        """The end of what the command has said on stderr so far."""


class Transport(Protocol):
    """A way to one host.

    Attributes:
        via: By what the newest stream was opened, and why by that, for people.
    """

    via: str

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """Start `command` in the login shell of the user there.

        Args:
            asker: Asks the person for what a login needs; None: no person can be asked, and such a login is refused.

        Raises:
            HostError: Unreachable, AuthenticationError or HostKeyError where it is one of those.
        """


T = TypeVar("T")
PAUSES_S = (0.3, 1.0, 2.0)


def open_with_retries(
    open_once: Callable[[], T], was_dropped: Callable[[Unreachable], bool], pauses_s: Sequence[float]
) -> T:
    """What `open_once` opens; it is called again after each pause while the host hangs up at once."""
    for pause in pauses_s:
        began = time.monotonic()
        try:
            return open_once()
        except Unreachable as error:
            if not was_dropped(error) or time.monotonic() - began > pauses_s[-1]:
                raise
            threading.Event().wait(pause * random.uniform(0.5, 1.5))
    return open_once()
