"""Byte streams to hosts: `transport_for` chooses the implementation of the interface in `base`."""

from __future__ import annotations

import sys

from clusterfn.config.spec import Host
from clusterfn.hosts.transports.base import LocalTransport, Stream, Transport
from clusterfn.hosts.transports.prompts import Asker

__all__ = ["Asker", "Stream", "Transport", "can_hold", "is_held", "transport_for"]


def transport_for(host: Host) -> Transport:
    """Return the transport that the host's configuration asks for.

    `transport: auto` is the system's ssh, which does all that the user's configuration asks for. Where it is missing,
    and on Windows, where it cannot ask a person for us, paramiko takes its place.
    """
    if host.is_this_machine:
        return LocalTransport(host.name)
    # Imported late, here and below, because importing all of SSH takes a tenth of a second.
    from clusterfn.hosts.transports import openssh, shared_login

    if host.transport == "openssh" or (host.transport == "auto" and openssh.has_ssh() and sys.platform != "win32"):
        return shared_login.ReusingTransport(host, openssh.OpensshTransport(host))
    from clusterfn.hosts.transports.paramiko import ParamikoTransport

    return shared_login.ReusingTransport(host, ParamikoTransport(host))


def is_held(host: Host) -> bool:
    """Whether `clusterfn login` holds a connection to the host. Looks at this machine alone."""
    from clusterfn.hosts.transports import shared_login

    return shared_login.is_held(host)


def can_hold(host: Host) -> bool:
    """Whether `clusterfn login` can hold a connection to the host on this machine."""
    from clusterfn.hosts.transports import shared_login

    return shared_login.can_hold(host)
