"""Hosts by SSH, with paramiko. Being built."""

from __future__ import annotations

from clusterfn.errors import HostError
from clusterfn.spec import Host
from clusterfn.transport.base import Stream


class ParamikoTransport:
    """A way to one host by SSH."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def open(self, command: str) -> Stream:
        raise HostError("not yet", host=self.host.name)
