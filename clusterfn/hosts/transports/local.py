"""This machine as a host: the command runs in /bin/sh, in a session of its own. POSIX only.

The session keeps the terminal's Ctrl-C away from the agent.
"""

from __future__ import annotations

import sys

from clusterfn.errors import ConfigError
from clusterfn.hosts.transports.asking import Asker
from clusterfn.hosts.transports.base import Stream
from clusterfn.hosts.transports.process import ProcessStream


class LocalTransport:
    """Commands on this machine."""

    via = "a process of this machine"

    def __init__(self, host: str = "local") -> None:
        self.host = host

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """Start `command`; see `Transport.open`."""
        if sys.platform == "win32":
            raise ConfigError(
                "Jobs cannot run on a Windows machine itself",
                host=self.host,
                hint="name a Linux host in clusterfn.yml (address: NAME, scheduler: bare), or run this inside WSL",
            )
        return ProcessStream(["/bin/sh", "-c", command])
