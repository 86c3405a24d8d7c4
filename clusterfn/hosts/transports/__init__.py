"""Byte streams to hosts: `base` is the seam, `transport_for` chooses the implementation."""

from __future__ import annotations

from clusterfn.config.spec import Host
from clusterfn.hosts.transports.base import Stream, Transport
from clusterfn.hosts.transports.prompts import Asker

__all__ = ["Asker", "Stream", "Transport", "can_hold", "is_held", "transport_for"]


def transport_for(host: Host) -> Transport:
    """The transport that the host's configuration asks for; paramiko is not imported before it is needed."""
    if host.scheduler == "local" or host.transport == "local":
        from clusterfn.hosts.transports.local import LocalTransport

        return LocalTransport(host.name)
    from clusterfn.hosts.transports.shared_login import ReusingTransport

    return ReusingTransport(host, _by_ssh(host))


def _by_ssh(host: Host) -> Transport:
    if host.transport == "paramiko":
        from clusterfn.hosts.transports.paramiko import ParamikoTransport

        return ParamikoTransport(host)
    if host.transport == "openssh":
        from clusterfn.hosts.transports.openssh import OpensshTransport

        return OpensshTransport(host)
    from clusterfn.hosts.transports.auto import AutoTransport

    return AutoTransport(host)


def is_held(host: Host) -> bool:
    """Whether `clusterfn login` holds a connection to the host. Looks at this machine alone."""
    from clusterfn.hosts.transports import shared_login

    return shared_login.is_held(host)


def can_hold(host: Host) -> bool:
    """Whether `clusterfn login` can hold a connection to the host on this machine."""
    from clusterfn.hosts.transports import shared_login

    return shared_login.can_hold(host)
