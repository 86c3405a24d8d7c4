"""The seam to a host: a transport opens a byte stream to a command there, and nothing else.

Implementations: `local.LocalTransport`, `paramiko.ParamikoTransport`, `openssh.OpensshTransport`, `auto.AutoTransport`,
which chooses between these two, `reuse.ReusingTransport`, which goes by a held connection rather than by any of them,
and `tests.fakes.transport.FakeTransport`. All pass tests/contract/test_transport_contract.py. Foreign errors are
translated in them, and nowhere else.
"""

from __future__ import annotations

from typing import Protocol

from clusterfn.hosts.transports.asking import Asker


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
            asker: Asks the person for what a login needs; None: nobody is asked, and such a login is refused.

        Raises:
            HostError: Unreachable, AuthenticationError or HostKeyError where it is one of those.
        """
