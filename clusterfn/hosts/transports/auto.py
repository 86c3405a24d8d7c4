"""Choose between paramiko and the system's ssh for a host, and say why.

`transport: auto` takes paramiko where it can do what the ssh configuration asks for. It chooses again for each stream,
because a ControlMaster may open or close. paramiko is imported when it is needed, because that takes time.
"""

from __future__ import annotations

import contextlib

from clusterfn.config.spec import Host
from clusterfn.errors import HostError
from clusterfn.hosts.transports import host_keys, openssh
from clusterfn.hosts.transports.base import Stream, Transport
from clusterfn.hosts.transports.prompts import Asker
from clusterfn.hosts.transports.shared_login import ReusingTransport
from clusterfn.hosts.transports.ssh_config import Settings, jumps, resolve
from clusterfn.hosts.transports.ssh_config_file import load_paramiko

KLIST_S = 5.0


def transport_by_ssh(host: Host) -> Transport:
    """Return the transport of a host that is reached by SSH; it prefers a held connection to a new one."""
    if host.transport == "paramiko":
        load_paramiko()
        from clusterfn.hosts.transports.paramiko import ParamikoTransport

        return ReusingTransport(host, ParamikoTransport(host))
    own = openssh.OpensshTransport(host) if host.transport == "openssh" else AutoTransport(host)
    return ReusingTransport(host, own)


class AutoTransport(Transport):
    """Reaches one host by paramiko or by the system's ssh."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.via = ""
        self._mismatch = False

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """Open a stream by the chosen transport; see `Transport.open`."""
        settings = resolve(self.host)
        reason = self._reason(settings) if openssh.has_ssh() else ""
        if not reason:
            load_paramiko()
            from clusterfn.hosts.transports.paramiko import ParamikoTransport, is_mismatch

            self.via = "paramiko"
            try:
                return ParamikoTransport(self.host, settings).open(command, asker)
            except HostError as error:
                if not is_mismatch(error) or not openssh.has_ssh():
                    raise
            self._mismatch = True
            reason = self._reason(settings)
        self.via = f"openssh ({reason})"
        return openssh.OpensshTransport(self.host, settings).open(command, asker)

    def _reason(self, settings: Settings) -> str:
        if self._mismatch:
            return "paramiko and the host have no algorithm in common"
        if openssh.has_master(settings):
            return "a ControlMaster is open"
        return next((need for hop in (settings, *jumps(self.host, settings)) if (need := needs_ssh(hop))), "")


def needs_ssh(settings: Settings) -> str:
    """Return what the configuration asks for and paramiko cannot do; empty if nothing."""
    if settings.unmet:
        return f"paramiko does not support {settings.unmet[0]}"
    for path in settings.identity_files:
        with contextlib.suppress(OSError):
            public = path.with_name(path.name + ".pub").read_text(encoding="utf-8", errors="replace")
            if public.startswith("sk-") and path.exists():
                return f"{path.name} is a FIDO key"
    if host_keys.has_authority_alone(settings):
        return "an authority vouches for its host key"
    if settings.gssapi:
        # Many systems enable GSSAPIAuthentication for every host, so
        # only a valid ticket shows that the user relies on it.
        with contextlib.suppress(OSError):
            return "" if openssh.answer_of(["klist", "-s"], KLIST_S) is None else "there is a Kerberos ticket"
    return ""
