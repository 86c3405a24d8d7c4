"""Byte streams to hosts: `base` is the seam, `transport_for` chooses the implementation. Called by `host` alone."""

from __future__ import annotations

from clusterfn.spec import Host
from clusterfn.transport.asking import Asker
from clusterfn.transport.base import Stream, Transport

__all__ = ["Asker", "Stream", "Transport", "is_held", "transport_for"]


def transport_for(host: Host) -> Transport:
    """The transport that the host's configuration asks for; paramiko is not imported before it is needed."""
    if host.scheduler == "local" or host.transport == "local":
        from clusterfn.transport.local import LocalTransport

        return LocalTransport(host.name)
    from clusterfn.transport.reuse import ReusingTransport

    return ReusingTransport(host, _by_ssh(host))


def _by_ssh(host: Host) -> Transport:
    if host.transport == "paramiko":
        from clusterfn.transport.paramiko import ParamikoTransport

        return ParamikoTransport(host)
    if host.transport == "openssh":
        from clusterfn.transport.openssh import OpensshTransport

        return OpensshTransport(host)
    from clusterfn.transport.auto import AutoTransport

    return AutoTransport(host)


def is_held(host: Host) -> bool:
    """Whether `clusterfn login` holds a connection to the host. Looks at this machine alone."""
    from clusterfn.transport import logins

    return logins.is_held(host)
