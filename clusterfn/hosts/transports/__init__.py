"""Byte streams to hosts: `transport_for` chooses the implementation of the interface in `base`."""

from __future__ import annotations

from clusterfn.config.spec import Host
from clusterfn.hosts.transports.base import LocalTransport, Stream, Transport
from clusterfn.hosts.transports.prompts import Asker

__all__ = ["Asker", "Stream", "Transport", "can_hold", "is_held", "transport_for"]


def transport_for(host: Host) -> Transport:
    """Return the transport that the host's configuration asks for."""
    if host.is_this_machine:
        return LocalTransport(host.name)
    # Imported late, here and below, because importing all of SSH takes a tenth of a second.
    from clusterfn.hosts.transports import auto

    return auto.transport_by_ssh(host)


def is_held(host: Host) -> bool:
    """Whether `clusterfn login` holds a connection to the host. Looks at this machine alone."""
    from clusterfn.hosts.transports import shared_login

    return shared_login.is_held(host)


def can_hold(host: Host) -> bool:
    """Whether `clusterfn login` can hold a connection to the host on this machine."""
    from clusterfn.hosts.transports import shared_login

    return shared_login.can_hold(host)
