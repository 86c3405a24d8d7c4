"""Byte streams to hosts: `base` is the seam, `transport_for` chooses the implementation. Called by `host` alone."""

from __future__ import annotations

from clusterfn.spec import Host
from clusterfn.transport.base import Stream, Transport

__all__ = ["Stream", "Transport", "transport_for"]


def transport_for(host: Host) -> Transport:
    """The transport that the host's configuration asks for; paramiko is not imported before it is needed."""
    kind = "local" if host.scheduler == "local" or host.transport == "local" else host.transport
    if kind == "local":
        from clusterfn.transport.local import LocalTransport

        return LocalTransport(host.name)
    if kind == "paramiko":
        from clusterfn.transport.paramiko import ParamikoTransport

        return ParamikoTransport(host)
    if kind == "openssh":
        from clusterfn.transport.openssh import OpensshTransport

        return OpensshTransport(host)
    from clusterfn.transport.auto import AutoTransport

    return AutoTransport(host)
